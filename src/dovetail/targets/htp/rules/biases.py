"""Q5 on HTP: int32 biases whose integers or scales it computes wrongly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dovetail.encoding import Array, DType, Granularity, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import constant_of
from dovetail.model.place import at_node
from dovetail.plan.constraints import Operand
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import BIAS_INPUT, Operation, operations, original_name, say
from dovetail.rules.rule import rule

# A MatMul and the Add of its bias are a Gemm.
_WITH_BIAS = frozenset(("Conv", "ConvTranspose", "Gemm"))
# Where sums exceed int32: activations of this width, and the end of int32.
_NARROW_BITS, _INT32_END = 8, 2.0**31
# The relative error of a bias that is reported (45 dB in 16 bits), and the one from which the outputs are far off.
_REPORTED, _FAR = 0.01, 0.1
# In 8 bits, convolutions with a larger error were right: Conv from 0.3 on, wrong at 0.2; ConvTranspose from 0.2 on.
_LARGEST_OF_NARROW_CONV = 0.3


@rule("Q553")
def per_channel_bias_of_weight_with_one_scale(subject: CheckInput) -> Iterator[Finding]:
    """The bias of a linear operator has a scale per channel, its weight has one scale.

    ## What it finds
    In QDQ models: Conv, ConvTranspose, Gemm and MatMul with an Add of its bias, whose weight has a single scale and
    whose int32 bias has one per channel, even if all of them are equal. The weight of a depthwise ConvTranspose has a
    single scale if the axis of its output channels has one element.

    ## Why it matters
    HTP then computes all channels wrongly: -28 to -12 dB against the simulation. The compiler reports nothing. Without
    a bias the results are right.

    ## How to fix it
    Quantize the bias with one scale (rank 0), input scale x weight scale. `dovetail fit` and `dovetail repair` do this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: Conv, also depthwise, ConvTranspose, Gemm and
      MatMul with Add, int8 and int16 weights, 8- and 16-bit activations, 8 channels: -28 to -17 dB, with one scale 73
      to 81 dB in 16 bits and 32 to 37 dB in 8 bits. Gemm on v68 and v81: -25 dB in 16 bits, -22 dB in 8 bits. With one
      output channel it is right.
    - qnn-htp: the same version, depthwise ConvTranspose, 16 bits: 3, 4, 5, 8 and 16 channels, 3 x 3, 13 x 24: -14 to
      -12 dB, with one scale 79 dB.
    """
    for operation, weight, operand, bias in _biases(subject):
        if weight.scale.size == 1 and bias.scale.size > 1:
            yield Finding(
                "Q553",
                at_node(operation.node),
                f"{say(operation.node)}: the bias {original_name(operand)!r} has a scale per channel, the weight "
                "has one: HTP computes all channels wrongly",
                Severity.ERROR,
                fix="quantize the bias with one scale; `dovetail repair` does this",
            )


@rule("Q566")
def bias_scales_differ_from_products(subject: CheckInput) -> Iterator[Finding]:
    """The bias of a per-channel weight has other scales than input scale x weight scale.

    ## What it finds
    In QDQ models: Conv, ConvTranspose, Gemm and MatMul with an Add of its bias, whose weight has a scale per channel
    and whose int32 bias

    - has one scale, even if all products of input and weight scale are equal to it;
    - or has a scale per channel, one of which is more than 1 % off the product. Not reported are 8-bit convolutions
      with a scale more than 30 % off, which were right.

    This happens if the scale of an activation is changed after the biases were quantized. It is a warning if all scales
    are at most 10 % off. If the weight has one scale and the bias has one, HTP converts the bias, whatever its scale.

    ## Why it matters
    HTP adds the integers of such a bias to the accumulator as if its scales were the products. The compiler reports
    nothing, and the simulation uses the scales in the file.

    ## How to fix it
    Quantize the bias again, with input scale x weight scale for every channel. `dovetail fit` and `dovetail repair` do
    this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated, 8 channels: a bias with one scale agrees with the
      simulation to 3 to 15 dB (Conv, also depthwise, ConvTranspose, Gemm, MatMul with Add; int8 and int16 weights; 8
      and 16 bits). Scales per channel that are 0.3, 1, 10 and 100 % too large: 57, 46, 27 and 12 dB in 16 bits, with
      the products 72 to 77 dB. 8 bits: Gemm and MatMul with Add 31, 21 and 11 dB at 1, 10 and 100 %; Conv 25 and 22 dB
      at 10 and 20 %, but right from 30 % on; ConvTranspose 23 dB at 10 %, right at 20 % and more. Gemm on v68 and v81:
      the same. Weight and bias with one scale each: right from 0.01 to 100 times the product.
    """
    for operation, weight, operand, bias in _biases(subject):
        source = operation.input_at(0)
        if weight.scale.size == 1 or source is None or not isinstance(source[1], QParams) or source[1].scale.size != 1:
            continue
        error = 1.0 if bias.scale.size == 1 else _scale_error(source[1].scale, weight.scale, bias.scale)
        is_narrow = operation.op != "Gemm" and source[1].dtype.bits == _NARROW_BITS
        right = is_narrow and bias.scale.size > 1 and error > _LARGEST_OF_NARROW_CONV
        if error > _REPORTED and not right:
            has = "has one scale" if bias.scale.size == 1 else f"has scales up to {error:.2%} off input x weight scale"
            yield Finding(
                "Q566",
                at_node(operation.node, operand.edge),
                f"{say(operation.node)} has a weight with a scale per channel, and its bias {original_name(operand)!r} "
                f"{has}: HTP computes as if the scales were the products",
                Severity.ERROR if error > _FAR else Severity.WARNING,
                {"relative_error": error},
                f"quantize {original_name(operand)!r} again with input scale x weight scale per channel; `dovetail "
                "repair` does this",
            )


def _scale_error(source: Array, weight: Array, bias: Array) -> float:
    """The largest relative difference of a bias scale from its product; 0 if the numbers of channels do not match."""
    if weight.size != bias.size:
        return 0.0
    products = source.reshape(-1).astype(np.float64) * weight.reshape(-1)
    return float(np.abs(bias.reshape(-1) / products - 1).max())


def _biases(subject: CheckInput) -> Iterator[tuple[Operation, QParams, Operand, QParams]]:
    """Yield linear operators with a constant integer weight, its qparams, the int32 bias and its qparams."""
    for operation in operations(subject):
        weight, bias = operation.input_at(1), operation.input_at(BIAS_INPUT)
        if operation.op not in _WITH_BIAS or not operation.in_integers or weight is None or bias is None:
            continue
        if not isinstance(weight[1], QParams) or not isinstance(bias[1], QParams) or not weight[0].constant:
            continue
        is_int32 = bias[1].dtype is DType.S32
        if is_int32 and weight[1].encoding.granularity in (Granularity.TENSOR, Granularity.AXIS):
            yield operation, weight[1], bias[0], bias[1]


@rule("Q563")
def bias_beyond_int32_accumulator(subject: CheckInput) -> Iterator[Finding]:
    """A bias is so large beside its scale that the int32 accumulator overflows.

    ## What it finds
    In QDQ models: Conv, ConvTranspose and Gemm with 8-bit activations and an int32 bias at or near the limits of int32,
    so that the bias and the largest possible sum of products together exceed them.

    ## Why it matters
    HTP's outputs are then far from the simulation's, as if the sum overflowed in int32. The compiler reports nothing,
    and the simulation, which adds in float, does not show it. With 16-bit activations the outputs agree.

    ## How to fix it
    Raise the weight scale of these channels until the bias fits; `dovetail fit` does this. Or use 16-bit activations.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: Gemm, Conv and ConvTranspose of 1 x 1 and 2 x 2,
      also depthwise, with biases of 2^31 and -2^31 steps agree with the simulation to -5 to 0 dB in uint8, to 106 dB or
      more in uint16; with 0.999 x 2^31 steps and products that still fit, uint8 is exact.
    """
    for operation in operations(subject):
        source, weight, bias = (operation.input_at(index) for index in range(3))
        if operation.op not in _WITH_BIAS or source is None or weight is None or bias is None:
            continue
        if (
            not isinstance(weight[1], QParams)
            or not isinstance(bias[1], QParams)
            or source[1].dtype.bits != _NARROW_BITS
        ):
            continue
        real, weights = constant_of(bias[0].value), constant_of(weight[0].value)
        if real is None or weights is None:
            continue
        steps = float(np.abs(real.astype(np.float64) / bias[1].scale).max())
        products = weights.size // real.size * 2.0 ** (_NARROW_BITS + weight[1].dtype.bits - 1)
        if steps + products > _INT32_END and steps > _INT32_END / 2:
            yield Finding(
                "Q563",
                at_node(operation.node),
                f"{say(operation.node)}: the bias {original_name(bias[0])!r} reaches {steps:.4g} steps of its scale: "
                "with the products it may exceed int32, and HTP then returns wrong results",
                Severity.WARNING,
                {"steps": steps},
                "raise the weight scale of these channels until the bias fits, or use 16-bit activations",
            )
