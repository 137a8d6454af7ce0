"""Q5 on HTP: outputs that differ from ONNX although the graph is compiled as planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import constant_of, is_op, shape_of
from dovetail.model.place import at_node
from dovetail.numerics.lpbq import channel_scales
from dovetail.plan.constraints import op_key
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import LINEAR, Operation, operations, original_name, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.table import LEAST_REQUANTIZATION

# Input scale x weight scale / output scale at and below which a 16-bit channel is saturated.
_SATURATED = 2**-24
# The axis and rank of an 8-bit CumSum that is right although the axis is not the last.
_RIGHT_CUMSUM = (0, 4)
# The width in which a Concat may not convert.
_CONCAT_BITS = 8


@rule("Q504")
def topk_tie_order(subject: CheckInput) -> Iterator[Finding]:
    """HTP's TopK returns equal values in a different order than ONNX.

    ## What it finds
    Every TopK, in float and in QDQ models.

    ## Why it matters
    Among equal values ONNX returns the lower index first; HTP does not. Quantized scores are often equal, and float16
    adds more ties. The boxes of a detector are then returned in a different order, and an element-by-element comparison
    of the outputs fails although they are correct. The operator runs in float (Q103).

    ## How to fix it
    Nothing, if the order of the rows does not matter: match the rows by score and box before comparing them, as
    `dovetail fit` does, or compare the inputs of the TopK. If the order matters, remove the TopK from the model and
    sort on the CPU.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: TopK of rounded scores returns the same values
      but different indices than onnxruntime 1.31.1 on the CPU.
    """
    for node in subject.model.graph.all_nodes():
        if is_op(node, "TopK"):
            yield Finding(
                "Q504",
                at_node(node),
                f"{say(node)}: among equal values HTP does not return the lowest index first, as ONNX specifies",
                Severity.NOTE,
                fix="match the rows before comparing them, or remove the TopK from the model",
            )


@rule("Q507")
def weight_scale_too_small_to_requantize(subject: CheckInput) -> Iterator[Finding]:
    """A weight scale is so small that HTP computes its channel wrongly.

    ## What it finds
    In QDQ models: Conv, ConvTranspose, Gemm and MatMul with a constant weight and 16-bit activations, of which a
    channel has an input scale x weight scale / output scale of 2^-24 or less. Folding a BatchNormalization into a
    convolution can leave such channels: their weights are nearly zero beside the others.

    ## Why it matters
    The integer sums of a channel are multiplied by this ratio. Below the limit the result is saturated where it should
    be nearly constant. The compiler reports nothing, and the simulation does not show it.

    ## How to fix it
    Raise these scales to 2^-21 x output scale / input scale, and quantize the weights and the int32 bias of these
    channels again: the output changes by less than one step of its scale for each weight. `dovetail fit` and `dovetail
    repair` do this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: all four operators, ratios from 2^-15 to 2^-36.
      At 8 bits every ratio is computed correctly. The same on v68, v69, v79 and v81 for Conv and Gemm.
    """
    for operation in operations(subject):
        saturated = saturated_channels(operation)
        if saturated is not None:
            yield Finding(
                "Q507",
                at_node(operation.node),
                f"{say(operation.node)}: {saturated.text}: HTP saturates these channels",
                Severity.ERROR,
                saturated.numbers,
                f"{saturated.fix}; `dovetail repair` does this",
            )


class SaturatedChannels(NamedTuple):
    """The channels of a weight whose scale is at most ``limit``: in words, in numbers, and what to do about them."""

    text: str
    numbers: dict[str, float]
    fix: str


def saturated_channels(operation: Operation) -> SaturatedChannels | None:
    """The channels that HTP saturates, if there are any; of blocks, by the scale of a channel's integers."""
    weight, limit = operation.input_at(1), _limit(operation)
    if weight is None or not isinstance(weight[1], QParams) or not weight[0].constant:
        return None
    scales = channel_scales(weight[1])
    small = int(np.count_nonzero(scales <= limit))
    if not small:
        return None
    text = (
        f"{small} of {scales.size} scales of {original_name(weight[0])!r} are at most {limit:.3g}, the smallest "
        f"{float(scales.min()):.3g}"
    )
    fix = f"raise them to {LEAST_REQUANTIZATION / _SATURATED * limit:.3g} and quantize weight and bias again"
    return SaturatedChannels(text, {"channels": float(small), "limit": limit}, fix)


def _limit(operation: Operation) -> float:
    """The largest weight scale with which a channel is saturated; 0 for an operator that has no such limit."""
    source = operation.input_at(0)
    scales = [s.scale for s in (source[1] if source else None, *operation.outputs) if isinstance(s, QParams)]
    wide = source is not None and source[1].dtype.bits == 16 and source[1].dtype.is_integer
    if operation.op not in LINEAR or not wide or len(scales) != 2:
        return 0.0
    return float(_SATURATED * scales[1] / scales[0])


@rule("Q548")
def inaccurate_lstm(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes LSTM inaccurately.

    ## What it finds
    Every LSTM, in float and in QDQ models.

    ## Why it matters
    HTP has an operator for a step of an LSTM, in float16, and approximates sigmoid and tanh in it: tanh(x) of a small x
    is 3.6 % too small, and the errors reach 0.009. That is neither the rounding of float16 nor the cell state: one step
    is as inaccurate as eight. The layer agrees with float to about 40 dB, with small activations to 23 to 29 dB, and
    `numerics` fails where more is needed. GRU is accurate.

    ## How to fix it
    Use a GRU, or write the steps out with Gemm, Sigmoid, Tanh, Mul and Add before fitting. `dovetail fit` leaves the
    LSTM as it is, because the steps written out would be quantized, in `w8a8` to 8 bits.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated, 16 inputs and 32 hidden elements, against
      float32: LSTM of 1, 2 and 8 steps 38 to 41 dB in float16, 29 dB with weights of a tenth; GRU of 8 steps 61 dB. The
      8 steps written out: 48 dB in float16; 69 dB against their own simulation in 16-bit integers. Sigmoid and Tanh on
      their own: 67 and 73 dB in float16.
    """
    for node in subject.model.graph.all_nodes():
        if is_op(node, "LSTM"):
            yield Finding(
                "Q548",
                at_node(node),
                f"{say(node)}: HTP approximates the sigmoid and tanh of an LSTM; it agrees with float to about 40 dB",
                Severity.WARNING,
                fix="use a GRU, or write the steps out with Gemm, Sigmoid and Tanh",
            )


@rule("Q562")
def concat_of_different_8_bit_scales(subject: CheckInput) -> Iterator[Finding]:
    """An 8-bit Concat joins tensors that were cut or reshaped and have other scales than its output.

    ## What it finds
    In QDQ models: a Concat in uint8 or int8 with an input from a Slice, Reshape, Transpose or other operator that only
    moves data, if this input has another scale or zero point than the output.

    ## Why it matters
    HTP's Concat converts its inputs to the scale of its output. After LayerNormalization, Slice and Reshape it
    silently copies the integers unchanged. Which other patterns are concerned is not known; the simulation does not
    show it.

    ## How to fix it
    Give the inputs the scale and zero point of the output, or quantize them to 16 bits. `dovetail fit` and `dovetail
    repair` do the first.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: the features of two layers of a windowed
      backbone, without their class tokens, joined: 5 dB, in 16 bits 77 dB. A Slice after a Neg is converted correctly
      in 8 bits (43 dB).
    """
    for operation in operations(subject):
        output = operation.outputs[0] if operation.outputs else None
        if operation.op != "Concat" or not operation.in_integers or not isinstance(output, QParams):
            continue
        for operand, storage in operation.inputs:
            producer = operand.value.producer()
            moved = producer is not None and op_key(producer) in DATA_MOVEMENT_OPS
            if moved and storage != output and output.dtype.bits == _CONCAT_BITS and not operand.constant:
                yield Finding(
                    "Q562",
                    at_node(operation.node, operand.edge),
                    f"{say(operation.node)} joins {original_name(operand)!r}, which has another scale or zero point "
                    "than its output: HTP may copy the integers unchanged",
                    Severity.WARNING,
                    fix=f"give {original_name(operand)!r} the scale and zero point of the output",
                )
                break


@rule("Q567")
def cumsum_of_8_bit_tensor_with_zero_point(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes an 8-bit CumSum wrongly, unless it adds along the last axis or the zero point is 0.

    ## What it finds
    In QDQ models: a CumSum between Q/DQ pairs in uint8 whose input has another zero point than 0, and whose axis is not
    the last one. The first axis of a tensor of rank 4 is not reported, because it was right.

    ## Why it matters
    The outputs have nothing to do with those of the simulation, as if the zero points were added up as well. The
    compiler reports nothing.

    ## How to fix it
    Quantize input and output to 16 bits, or leave the CumSum in float. `dovetail fit` and `dovetail repair` leave it in
    float16.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated, uint8, zero points 100 and 128, ranks 2 to 5:
      every axis but the last -13 to -6 dB against the simulation, but for axis 0 in rank 4 (35 dB); the last axis 31 dB
      and more; zero point 0 38 dB and more. In uint16 78 dB and more, in float16 72 dB, up to rank 4.
    """
    for operation in operations(subject):
        source = operation.input_at(0) if operation.op == "CumSum" and operation.in_integers else None
        if source is None or not isinstance(source[1], QParams) or source[1].dtype is not DType.U8:
            continue
        shape, axis = shape_of(source[0].value), constant_of(operation.node.inputs[1])
        if not shape or axis is None or axis.size != 1 or not source[1].zero_point.any():
            continue
        at = int(axis.reshape(())) % len(shape)
        if at != len(shape) - 1 and (at, len(shape)) != _RIGHT_CUMSUM:
            yield Finding(
                "Q567",
                at_node(operation.node),
                f"{say(operation.node)} adds uint8 values with the zero point {int(source[1].zero_point.flat[0])} "
                f"along axis {at} of {len(shape)}: HTP returns wrong results",
                Severity.ERROR,
                fix="quantize input and output to 16 bits, or leave it in float; `dovetail repair` does the latter",
            )
