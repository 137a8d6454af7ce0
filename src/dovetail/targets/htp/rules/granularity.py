"""Q2 on HTP: scales per channel and per block where it does not take them, or reads them wrongly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from dovetail.encoding import DType, Granularity, QParams
from dovetail.finding import Finding, Place, Severity
from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.model.place import at_node, at_tensor
from dovetail.plan.constraints import Operand
from dovetail.plan.qparams import channel_axis
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import LINEAR, Operation, named, operations, say, words
from dovetail.rules.rule import rule

_4_BIT = (DType.S4, DType.U4)
# "block_size must be a multiple of 8 for 4-bit weight"
_BLOCK_MULTIPLE = 8


@rule("Q201")
def scales_per_channel_beside_weights(subject: CheckInput) -> Iterator[Finding]:
    """An activation, or a constant that is no weight, has a scale per channel.

    ## What it finds
    In QDQ models: Q and DQ of activations with a scale per axis or block, and constants of Add, Mul and the like with
    more than one scale.

    ## Why it matters
    HTP has scales per channel for weights of linear layers only. It refuses the Q ("standalone Q op with per-channel
    quantization"), or the operator that reads it ("does not support per-channel quant tensor").

    ## How to fix it
    Give the tensor one scale. Where its channels differ too much for one, widen it to 16 bit, or move the difference
    into the weights on either side. `dovetail fit` gives every activation one scale.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43: Relu with a per-axis uint8 input and Mul with
      a per-axis constant are refused.
    """
    plan = subject.plan
    if plan is None:
        return
    graph = subject.model.graph
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        choice = plan.tensors.get(value.name or "")
        if choice is not None and _is_fine(choice.storage):
            yield _fine(at_tensor(value), f"activation {origin_of(value).name!r}", origin_of(value).name)
    for operation in operations(subject):
        for operand, storage in operation.inputs:
            weight = operand.constant and (operation.op in LINEAR or storage.dtype is DType.S32)
            on_edge = operand.constant or operand.edge in plan.edges
            if on_edge and not weight and _is_fine(storage):
                yield _fine(_operand(operand), f"{named(operand)!r} in front of {say(operation.node)}", named(operand))


def _is_fine(storage: object) -> bool:
    return isinstance(storage, QParams) and storage.encoding.granularity is not Granularity.TENSOR


def _operand(operand: Operand) -> Place:
    return replace(at_tensor(operand.value), edge=operand.edge)


def _fine(at: Place, what: str, name: str) -> Finding:
    return Finding(
        "Q201",
        at,
        f"{what} has more than one scale, HTP takes these for weights of linear layers only",
        Severity.ERROR,
        fix=f"give {name!r} one scale for all, and 16 bit if that is too coarse",
    )


@rule("Q202")
def weight_scales_on_wrong_axis(subject: CheckInput) -> Iterator[Finding]:
    """The scales of a weight do not count the output channels.

    ## What it finds
    In QDQ models: Conv, ConvTranspose, Gemm and MatMul whose constant weight has a scale per channel along another axis
    than that of the output channels (MatMul: the last; Gemm: the second, with `transB` the first; Conv: the first;
    ConvTranspose: the second).

    ## Why it matters
    A kernel multiplies the sum over input channels by one scale per output channel; along another axis the scales are
    inside of the sum. MatMul and Gemm compile and return wrong numbers, without a word; Conv and ConvTranspose are
    refused. The simulation shows nothing.

    ## How to fix it
    Quantize the weight along its output channels. `dovetail fit` does so.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated against the simulation: MatMul [8,4] with scales
      on axis 0 agrees to 4 dB, on axis 1 to 72 dB; Gemm and `transB` alike. Conv: "must be use axis == 0".
    """
    for operation, operand, params in _weights(subject, Granularity.AXIS):
        shape = shape_of(operand.value)
        wanted = None if shape is None else channel_axis(operation.node, operand.edge.index, len(shape))
        if shape is not None and params.axis is not None and params.axis % len(shape) != wanted:
            refused = operation.op in ("Conv", "ConvTranspose")
            yield Finding(
                "Q202",
                at_node(operation.node, operand.edge),
                f"{say(operation.node)} has the scales of its weight {named(operand)!r} on axis {params.axis}, its "
                f"output channels are axis {wanted}: {'HTP refuses it' if refused else 'HTP returns wrong numbers'}",
                Severity.ERROR,
                {"axis": float(params.axis), "channel_axis": float(wanted or 0)},
                f"quantize {named(operand)!r} along axis {wanted}",
            )


@rule("Q203")
def block_weights_read_wrongly(subject: CheckInput) -> Iterator[Finding]:
    """Weights with a scale per block are stored in a form that HTP reads wrongly or refuses.

    ## What it finds
    In QDQ models: linear layers whose weight has block scales along another axis than that of the input channels; has
    zero points other than 0 (uint4 with zero point 8 is one); stands beside 8-bit activations; has 4 bits and a block
    size that is no multiple of 8; or belongs to a Conv with a kernel larger than 1 x 1.

    ## Why it matters
    The provider takes the scales and forgets the axis and the zero points: the model compiles and returns noise. The
    last three are refused.

    ## How to fix it
    int4, symmetric (zero points 0), blocks of 16 or more along the input channels, 16-bit activations. A uint4 weight
    with zero point 8 becomes int4 with zero point 0 by subtracting 8 from its integers.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated against the simulation: MatMul with symmetric int4
      blocks on axis 0 agrees to 67 to 69 dB; blocks on axis 1 give -26 to -32 dB, zero points from -4 to 4 give -1 to
      9 dB, uint4 with zero point 8 gives -11 dB; Gemm with `transB` alike. uint8 activations: "BQ MatMul activation
      must be INT16-quantized"; blocks of 4: "must be a multiple of 8"; Conv 3 x 3: "BQ Conv scale size mismatch". Those
      that are right read their activations back into float16.
    - qnn-htp: the same with the provider's `enable_block_quant_weight_optimization`: axis 1 is refused, the zero points
      are still forgotten.
    """
    for operation, operand, params in _weights(subject, Granularity.BLOCK):
        obstacle = _block_obstacle(operation, operand, params)
        if obstacle:
            yield Finding(
                "Q203",
                at_node(operation.node, operand.edge),
                f"{say(operation.node)} has block scales on its weight {named(operand)!r}, {obstacle}",
                Severity.ERROR,
                fix="store it as int4 with zero points 0, blocks of 16 or more along the input channels, beside 16-bit "
                "activations; or with one scale per output channel",
            )


def _block_obstacle(operation: Operation, operand: Operand, params: QParams) -> str:
    """Why block weights do not come out right; empty if they do."""
    shape = shape_of(operand.value)
    if shape is None or params.axis is None:
        return ""
    axis, inner = params.axis % len(shape), _input_axis(operation, operand, len(shape))
    if axis != inner:
        return f"along axis {axis} and not along its input channels, axis {inner}: HTP returns wrong numbers"
    if params.zero_point.any():
        return f"with zero points other than 0 ({words(params)}), which HTP forgets: it returns wrong numbers"
    if params.dtype in _4_BIT and params.encoding.block_size % _BLOCK_MULTIPLE:
        return f"in blocks of {params.encoding.block_size}, no multiple of {_BLOCK_MULTIPLE}: HTP refuses it"
    if operation.op in ("Conv", "ConvTranspose") and math.prod(shape[2:]) > 1:
        return "and a kernel larger than 1 x 1: HTP refuses it"
    if any(each.dtype in (DType.U8, DType.S8) for each in operation.activations):
        return "beside 8-bit activations: HTP refuses it"
    return ""


def _input_axis(operation: Operation, operand: Operand, rank: int) -> int:
    """The axis of a weight that is summed over."""
    outputs = channel_axis(operation.node, operand.edge.index, rank)
    if operation.op in ("Conv", "ConvTranspose", "Gemm"):
        return 1 - outputs
    return max(rank - 2, 0)


@rule("Q204")
def zero_points_per_channel(subject: CheckInput) -> Iterator[Finding]:
    """A weight with a scale per channel is not symmetric.

    ## What it finds
    In QDQ models: linear layers whose weight has a scale per channel and zero points other than the middle of its dtype
    (0 for int8, 128 for uint8).

    ## Why it matters
    HTP's per-channel weights have no zero points: the node is refused ("has incorrect Value -20, expected equal to 0").

    ## How to fix it
    Quantize weights symmetrically; at 8 bits per channel the finer grid of an asymmetric range is worth little.
    `dovetail fit` does so.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43: Conv, Gemm and MatMul with int8 weights and
      zero points other than 0 per channel are refused; with 0, or uint8 with 128, they compile.
    """
    for operation, operand, params in _weights(subject, Granularity.AXIS):
        if not params.encoding.symmetric:
            yield Finding(
                "Q204",
                at_node(operation.node, operand.edge),
                f"{say(operation.node)} has zero points per channel on its weight {named(operand)!r}: HTP refuses it",
                Severity.ERROR,
                fix=f"quantize {named(operand)!r} symmetrically, with zero points 0",
            )


def _weights(subject: CheckInput, granularity: Granularity) -> Iterator[tuple[Operation, Operand, QParams]]:
    """The constant weights of linear layers with scales of one granularity."""
    for operation in operations(subject):
        weight = operation.read(1) if operation.op in LINEAR else None
        if weight is None or not weight[0].constant or not isinstance(weight[1], QParams):
            continue
        if weight[1].encoding.granularity is granularity:
            yield operation, weight[0], weight[1]
