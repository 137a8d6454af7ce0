"""Q2 on HTP: per-channel and per-block scales that it does not support, or computes wrongly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, Granularity, QParams
from dovetail.finding import Finding, Place, Severity
from dovetail.model.edit import attribute, constant_of, input_axis, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.place import at_node, at_tensor
from dovetail.plan.constraints import Operand
from dovetail.plan.qparams import channel_axis
from dovetail.qdq.params import is_dequantize
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import LINEAR, Operation, dtype_text, operations, original_name, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.chips import chip_of
from dovetail.targets.htp.table import EXPANDED_MULTIPLE, why_no_block_size

_4_BIT = (DType.S4, DType.U4)
# "block_size must be a multiple of 8 for 4-bit weight"
_BLOCK_MULTIPLE = 8
# An integer scale is stored in four bits, less one.
_LARGEST_INTEGER_SCALE = 16


@rule("Q201")
def per_channel_scales_on_non_weight(subject: CheckInput) -> Iterator[Finding]:
    """An activation, or a constant that is not a weight, is quantized per channel or per block.

    ## What it finds
    In QDQ models: Q and DQ nodes of activations with per-channel or per-block scales, and constants with more than one
    scale of every operator but Conv, ConvTranspose, Gemm and MatMul. An int32 constant may have them.

    ## Why it matters
    HTP supports per-channel scales only for the weights of Conv, ConvTranspose, Gemm and MatMul. The compiler rejects
    the QuantizeLinear ("standalone Q op with per-channel quantization") or its consumer ("does not support per-channel
    quant tensor").

    ## How to fix it
    Quantize the tensor with one scale. If its channels differ too much for that, quantize it to 16 bits, or equalize
    the channels by moving their scales into the neighboring weights. `dovetail fit` gives every activation one scale.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43: per-channel constants of Add, Concat, Div,
      Max, Min, Mul, PRelu, Pow, Sub and Where, and per-channel inputs of Abs, Gelu, Neg, Relu, Sigmoid, Softmax and
      Tanh, are rejected (tests/backends/qnn_htp/test_operators.py).
    """
    plan = subject.plan
    if plan is None:
        return
    graph = subject.model.graph
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        choice = plan.tensors.get(value.name or "")
        if choice is not None and _has_many_scales(choice.storage):
            name = origin_of(value).name
            yield _many_scales(at_tensor(value), f"activation {name!r}", name)
    for operation in operations(subject):
        for operand, storage in operation.inputs:
            weight = operand.constant and (operation.op in LINEAR or storage.dtype is DType.S32)
            on_edge = operand.constant or operand.edge in plan.edges
            if on_edge and not weight and _has_many_scales(storage):
                name = original_name(operand)
                yield _many_scales(_operand(operand), f"input {name!r} of {say(operation.node)}", name)


def _has_many_scales(storage: object) -> bool:
    return isinstance(storage, QParams) and storage.encoding.granularity is not Granularity.TENSOR


def _operand(operand: Operand) -> Place:
    return replace(at_tensor(operand.value), edge=operand.edge)


def _many_scales(at: Place, label: str, name: str) -> Finding:
    return Finding(
        "Q201",
        at,
        f"{label} has more than one scale, HTP supports this only for the weights of Conv, Gemm and MatMul",
        Severity.ERROR,
        fix=f"quantize {name!r} with one scale, and to 16 bits if one 8-bit scale is too coarse",
    )


@rule("Q202")
def weight_scales_on_wrong_axis(subject: CheckInput) -> Iterator[Finding]:
    """The per-channel scales of a weight are not on the axis of its output channels.

    ## What it finds
    In QDQ models: Conv, ConvTranspose, Gemm and MatMul whose constant weight has per-channel scales on an axis other
    than that of the output channels (MatMul: the last; Gemm: the second, with `transB` the first; Conv: the first;
    ConvTranspose: the second).

    ## Why it matters
    A kernel accumulates over the input channels and multiplies the sum by one scale per output channel. Scales on a
    different axis would have to be applied inside the sum. MatMul and Gemm compile and silently return wrong results;
    Conv and ConvTranspose are rejected. The simulation does not show the problem.

    ## How to fix it
    Quantize the weight along its output channels. `dovetail fit` does this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated and compared with the simulation: MatMul [8,4]
      with scales on axis 0 agrees to 4 dB, on axis 1 to 72 dB; the same for Gemm with and without `transB`. Conv: "must
      be use axis == 0".
    """
    for operation, operand, params in _weights(subject, Granularity.AXIS):
        shape = shape_of(operand.value)
        axis = None if shape is None else channel_axis(operation.node, operand.edge.index, len(shape))
        if shape is not None and params.axis is not None and params.axis % len(shape) != axis:
            rejected = operation.op in ("Conv", "ConvTranspose")
            name = original_name(operand)
            yield Finding(
                "Q202",
                at_node(operation.node, operand.edge),
                f"{say(operation.node)} has the scales of its weight {name!r} on axis {params.axis}, but its output "
                f"channels are axis {axis}: {'HTP rejects it' if rejected else 'HTP returns wrong results'}",
                Severity.ERROR,
                {"axis": float(params.axis), "channel_axis": float(axis or 0)},
                f"quantize {name!r} along axis {axis}",
            )


@rule("Q203")
def unsupported_block_quantized_weight(subject: CheckInput) -> Iterator[Finding]:
    """A weight is quantized per block in a way that HTP computes wrongly or rejects.

    ## What it finds
    In QDQ models: Conv, ConvTranspose, Gemm and MatMul with a block-quantized weight

    - whose blocks are on an axis other than that of the input channels;
    - with zero points other than 0 (for example uint4 with zero point 8);
    - with 8-bit activations;
    - with 4 bits and a block size that is not a multiple of 8;
    - of a Conv with a kernel larger than 1 x 1, or with groups.

    Blocks with integer scales have rule Q205.

    ## Why it matters
    The provider uses the scales but ignores their axis and the zero points: in the first two cases the model compiles
    and returns noise. The last three are rejected.

    ## How to fix it
    Use symmetric int4 (zero points 0), a block size that is a multiple of 8, blocks along the input channels, and
    16-bit activations. To convert a uint4 weight with zero point 8 to int4 with zero point 0, subtract 8 from its
    integers. A Conv with a larger kernel or with groups needs one scale per output channel.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated and compared with the simulation: MatMul with
      symmetric int4 blocks on axis 0 agrees to 67 to 69 dB; blocks on axis 1 give -26 to -32 dB, zero points from -4 to
      4 give -1 to 9 dB, uint4 with zero point 8 gives -11 dB; the same for Gemm with `transB`. uint8 activations: "BQ
      MatMul activation must be INT16-quantized"; blocks of 4: "must be a multiple of 8"; Conv 3 x 3: "BQ Conv scale
      size mismatch"; Conv 1 x 1 with two groups: "requires group to be set to 1". Wherever the results are correct, HTP
      dequantizes the activations to float16.
    - qnn-htp: the same with the provider's `enable_block_quant_weight_optimization`: axis 1 is rejected, zero points
      are still ignored.
    """
    for operation, operand, params in _weights(subject, Granularity.BLOCK):
        problem = _block_problem(operation, operand, params)
        if problem:
            yield Finding(
                "Q203",
                at_node(operation.node, operand.edge),
                f"{say(operation.node)} has the block-quantized weight {original_name(operand)!r} {problem}",
                Severity.ERROR,
                fix="quantize it to int4 with zero points 0 and blocks along the input channels, with a block size "
                "that is a multiple of 8, and 16-bit activations; or use one scale per output channel",
            )


@rule("Q206")
def block_quantized_layer_in_float(subject: CheckInput) -> Iterator[Finding]:
    """A weight has blocks with float scales (BQ): the layer runs in float although its activations are quantized.

    ## What it finds
    In QDQ models, and with an encodings file: Conv, Gemm and MatMul between quantized tensors whose weight has blocks
    with float scales, in 4 or 8 bits, and none of the problems of Q203.

    ## Why it matters
    HTP has no integer kernel for such blocks: it dequantizes the activations and computes in float, which takes
    longer than int8 weights with 16-bit activations. Chips without float arithmetic (v68) reject the layer.

    ## How to fix it
    `dovetail repair --to-lpbq` gives the blocks integer scales and rounds the weights on the new grid, which HTP
    computes in integers. The provider's option `enable_block_quant_weight_optimization` converts the scales of MatMul
    and Conv alone, which leaves the weights on another grid (32 to 37 dB), and does not convert Gemm. Or use one scale
    per output channel.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), dumped graphs, SoC 43, v69, v73, v75, v79 and v81: MatMul, Gemm
      and Conv of 1 x 1 with symmetric int4 blocks along the input channels read and write float16, and agree with the
      simulation to 66 to 72 dB; v68 rejects them. The same for int8 blocks of 4, 16, 20 and 32: 65 to 66 dB. SoC 52,
      vendor's estimate of a windowed DINOv2 block: 5385 us, with int8 weights 1297 us
      (`python -m bench.block estimate`).
    """
    if subject.raw is None:  # a plan of ours says so already
        return
    written = _written(subject)
    for operation, operand, params in _weights(subject, Granularity.BLOCK):
        integers = _integer_scales(written, operation, operand)  # see Q205
        if not operation.in_integers or integers is not None or _block_problem(operation, operand, params):
            continue
        chip, name = chip_of(subject), original_name(operand)
        effect = "it runs in float" if chip.computes_in_float else f"{chip.name} rejects it"
        yield Finding(
            "Q206",
            at_node(operation.node, operand.edge),
            f"{say(operation.node)} has the weight {name!r} in blocks with float scales: {effect}",
            Severity.WARNING if chip.computes_in_float else Severity.ERROR,
            fix="convert the blocks with `dovetail repair --to-lpbq`, or use one scale per output channel",
        )


@rule("Q205")
def unsupported_expanded_blocks(subject: CheckInput) -> Iterator[Finding]:
    """A weight has blocks with integer scales (LPBQ) that HTP computes wrongly or rejects.

    ## What it finds
    In QDQ models: linear operators whose weight has blocks, of which a second DequantizeLinear computes the scales from
    integers and one scale per channel,

    - in blocks of another size than 16 or a multiple of 32;
    - with a number of input channels that is not a multiple of 32;
    - with an integer above 16: HTP has four bits for each;
    - with integers in another type than uint8, or with 8-bit weights;
    - of a Conv, ConvTranspose or Gemm;
    - or with any of the problems of Q203.

    ## Why it matters
    In the first three cases the model compiles and returns noise, in the first two from 33 output channels measured.
    The provider recognizes integer scales only for MatMul, and rejects the others. The same holds for blocks with float
    scales that the provider converts, because its option `enable_block_quant_weight_optimization` is set.

    ## How to fix it
    Use blocks of 16, 32 or 64 and linear layers written as MatMul, or quantize the float model with
    `dovetail fit --precision w4a16-lpbq`, which leaves other layers in int8.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated and compared with the simulation, 48 output
      channels: blocks of 8, 24, 40, 48 and 80 give -5 to -15 dB or crash the emulator, blocks of 16 over 48, 80, 112
      and 240 channels 0 to 6 dB; 16, 32, 64, 96, 128 and 256 over a multiple of 32 channels 76 to 86 dB. With 8 output
      channels all are correct. Gemm and Conv with integer scales are rejected.
    - qnn-htp: the same version, SoC 43, MatMul of 64 to 48 and 64 to 8 channels, blocks of 32: integers from 1 to 16
      agree to 74 to 78 dB, those from 1 or 16 to 17, 1 to 20, 64 or 255 and 17 to 32 to -17 to -1 dB, also on v68.
      Integers in int8 and uint16, and int8 weights with integers from 1 to 1, 16 or 255, are rejected
      (tests/backends/qnn_htp/test_integer_scales.py).
    """
    written = _written(subject)
    for operation, operand, params in _weights(subject, Granularity.EXPANDED_BLOCK, Granularity.BLOCK):
        integers = _integer_scales(written, operation, operand)
        expanded = params.encoding.granularity is Granularity.EXPANDED_BLOCK
        if not expanded and (integers is None or _block_problem(operation, operand, params)):
            continue  # see Q206 and Q203
        problem = _expanded_problem(operation, operand, params) or _integers_problem(params, integers)
        if problem:
            yield Finding(
                "Q205",
                at_node(operation.node, operand.edge),
                f"{say(operation.node)} has the weight {original_name(operand)!r} in blocks with integer scales "
                f"{problem}",
                Severity.ERROR,
                fix="use a MatMul with blocks of 16, 32 or 64 along the input channels, or one scale per channel",
            )


def _expanded_problem(operation: Operation, operand: Operand, params: QParams) -> str:
    """Why HTP does not compute expanded blocks correctly; empty if it does."""
    shape = shape_of(operand.value)
    if shape is None or (problem := _block_problem(operation, operand, params)):
        return "" if shape is None else problem
    if operation.op != "MatMul":
        return f"of a {operation.op}: HTP rejects it"
    if reason := why_no_block_size(params.encoding):
        return f"of {params.encoding.block_size}: {reason}"
    channels = shape[input_axis(operation.node, len(shape))]
    if channels % EXPANDED_MULTIPLE:
        return f"over {channels} input channels, not a multiple of {EXPANDED_MULTIPLE}: HTP returns wrong results"
    return ""


def _integers_problem(params: QParams, integers: Array | None) -> str:
    """Why HTP does not compute blocks with these integers as scales correctly; empty if it does, or if it is ours."""
    if params.dtype not in _4_BIT:
        return f"and {params.dtype} weights: HTP rejects it"
    if integers is None:
        return ""
    if integers.dtype != np.uint8:
        return f"in {integers.dtype} instead of uint8: HTP rejects it"
    if integers.max(initial=0) > _LARGEST_INTEGER_SCALE:
        return f"up to {integers.max()}, above {_LARGEST_INTEGER_SCALE}: HTP returns wrong results"
    return ""


def _written(subject: CheckInput) -> dict[str | None, ir.Node]:
    """The nodes of the file as it was read, by name."""
    return {} if subject.raw is None else {node.name: node for node in subject.raw.graph}


def _integer_scales(written: Mapping[str | None, ir.Node], operation: Operation, operand: Operand) -> Array | None:
    """The integers from which a DequantizeLinear in the file computes the scales of a weight; None if none does."""
    node, index = written.get(operation.node.name), operand.edge.index
    source = None if node is None or index >= len(node.inputs) else node.inputs[index]
    dequantize = None if source is None else source.producer()
    scales = dequantize.inputs[1] if dequantize is not None and is_dequantize(dequantize) else None
    computed = None if scales is None else scales.producer()
    return constant_of(computed.inputs[0]) if computed is not None and is_dequantize(computed) else None


def _block_problem(operation: Operation, operand: Operand, params: QParams) -> str:
    """Why HTP does not compute a block-quantized weight correctly; empty if it does."""
    shape = shape_of(operand.value)
    if shape is None or params.axis is None:
        return ""
    axis, inner = params.axis % len(shape), input_axis(operation.node, len(shape))
    if axis != inner:
        return f"with blocks on axis {axis} instead of its input channels, axis {inner}: HTP returns wrong results"
    if params.zero_point.any():
        return f"with zero points other than 0 ({dtype_text(params)}), which HTP ignores: it returns wrong results"
    if params.dtype in _4_BIT and params.encoding.block_size % _BLOCK_MULTIPLE:
        return f"in blocks of {params.encoding.block_size}, not a multiple of {_BLOCK_MULTIPLE}: HTP rejects it"
    if operation.op in ("Conv", "ConvTranspose") and math.prod(shape[2:]) > 1:
        return "and a kernel larger than 1 x 1: HTP rejects it"
    if operation.op in ("Conv", "ConvTranspose") and attribute(operation.node, "group", 1) != 1:
        return "and groups: HTP rejects it"
    if any(storage.dtype in (DType.U8, DType.S8) for storage in operation.activations):
        return "with 8-bit activations: HTP rejects it"
    return ""


@rule("Q204")
def asymmetric_per_channel_weight(subject: CheckInput) -> Iterator[Finding]:
    """A per-channel quantized weight is not symmetric.

    ## What it finds
    In QDQ models: Conv, ConvTranspose, Gemm and MatMul whose weight has per-channel scales and zero points other than
    the middle of its dtype (0 for int8, 128 for uint8).

    ## Why it matters
    HTP's per-channel weights must be symmetric: the node is rejected ("has incorrect Value -20, expected equal to 0").

    ## How to fix it
    Quantize weights symmetrically. With per-channel 8-bit weights, an asymmetric range gains little accuracy.
    `dovetail fit` quantizes weights symmetrically.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43: Conv, Gemm and MatMul with per-channel int8
      weights and zero points other than 0 are rejected; with 0, or uint8 with 128, they compile.
    """
    for operation, operand, params in _weights(subject, Granularity.AXIS):
        if not params.encoding.symmetric:
            name = original_name(operand)
            yield Finding(
                "Q204",
                at_node(operation.node, operand.edge),
                f"{say(operation.node)} has the asymmetric per-channel weight {name!r}: HTP rejects it",
                Severity.ERROR,
                fix=f"quantize {name!r} symmetrically, with zero points 0",
            )


def _weights(subject: CheckInput, *granularities: Granularity) -> Iterator[tuple[Operation, Operand, QParams]]:
    """Yield the constant weights of Conv, ConvTranspose, Gemm and MatMul that have scales of these granularities."""
    for operation in operations(subject):
        weight = operation.input_at(1) if operation.op in LINEAR else None
        if weight is None or not weight[0].constant or not isinstance(weight[1], QParams):
            continue
        if weight[1].encoding.granularity in granularities:
            yield operation, weight[0], weight[1]
