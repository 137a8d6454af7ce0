"""Q1, Q2 and Q5 on TensorRT: types and scales that the builder rejects or silently treats as others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.finding import Finding, Place, Severity
from dovetail.model.edit import attribute, constant_of
from dovetail.model.place import at_edge, at_tensor
from dovetail.model.read import ORIGINAL_OPSET
from dovetail.passes.as_float16 import HALF_SCALES_OPSET, why_not_float16
from dovetail.qdq.params import is_dequantize, is_quantize, quantized_type
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule
from dovetail.targets.tensorrt.chips import FIRST_FP8, FIRST_INT4, Gpu

# float8e4m3fn, int4 and int8: "must have type FP8, FP4, Int4, Int8".
_TYPES_OF_CONSTANTS = (None, ir.DataType.INT8, ir.DataType.INT4, ir.DataType.FLOAT8E4M3FN)


def _qdq_nodes(subject: CheckInput) -> Iterator[ir.Node]:
    """The QuantizeLinear and DequantizeLinear nodes, in the file as it was read."""
    for node in subject.raw.graph if subject.raw is not None else ():
        if is_quantize(node) or is_dequantize(node):
            yield node


def _quantizers(subject: CheckInput) -> Iterator[ir.Node]:
    """The QuantizeLinear nodes of activations, in the file as it was read."""
    for node in _qdq_nodes(subject):
        if is_quantize(node) and constant_of(node.inputs[0]) is None:
            yield node


def _integer_inputs(subject: CheckInput) -> Iterator[ir.Node]:
    """The DequantizeLinear nodes of graph inputs, in the file as it was read."""
    for node in _qdq_nodes(subject):
        value = node.inputs[0]
        if is_dequantize(node) and value is not None and value.is_graph_input() and constant_of(value) is None:
            yield node


def _place(node: ir.Node) -> Place:
    """The tensor that a node quantizes; for a DequantizeLinear the constant or graph input, or else its output."""
    value = node.inputs[0]
    is_stored = value is not None and (is_quantize(node) or value.producer() is None)
    return at_tensor(value if value is not None and is_stored else node.outputs[0])


def _zero_point(node: ir.Node) -> int:
    """The first zero point of a Q or DQ node that is not 0; 0 if there is none."""
    points = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    shifted = [] if points is None else points[points != 0].tolist()
    return int(shifted[0]) if shifted else 0


@rule("Q121")
def unsigned_or_asymmetric_activation(subject: CheckInput) -> Iterator[Finding]:
    """An activation is quantized to uint8, or with a zero point other than 0.

    ## What it finds
    In QDQ models: QuantizeLinear nodes of activations whose type is uint8 or whose zero point is not 0, and graph
    inputs like that before a DequantizeLinear. Constants have rule Q126.

    ## Why it matters
    TensorRT supports only signed, symmetric int8. It rejects a zero point other than 0, and a DequantizeLinear of a
    uint8 input. It silently accepts a QuantizeLinear to uint8 with zero point 0 but computes in int8: every quantized
    value above 127 saturates, and the outputs are wrong.

    ## How to fix it
    Quantize activations to int8 with zero point 0; `dovetail repair` does this from the ranges in the file. An image in
    uint8 needs a Cast to float instead of the DequantizeLinear.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: uint8 with zero point 0 gives a gemm Int8 -> Float; the parser
      rejects zero point 128 ("Non-zero zero point is not supported"), and a DequantizeLinear of a uint8 input with any
      zero point ("Found unsupported input type of UINT8"). One of an int8 input is built.
    """
    for node in (*_quantizers(subject), *_integer_inputs(subject)):
        dtype, zero_point = quantized_type(node), _zero_point(node)
        if dtype is not ir.DataType.UINT8 and not (dtype is ir.DataType.INT8 and zero_point):
            continue
        rejected = zero_point or is_dequantize(node)
        effect = "rejects" if rejected else "computes as int8: values above 127 saturate"
        stored = f"{str(dtype).lower()} with zero point {zero_point}"
        yield Finding(
            "Q121",
            _place(node),
            f"{str(_place(node))!r} is quantized to {stored}, which the builder {effect}",
            Severity.ERROR,
            fix="quantize it to int8 with zero point 0: `dovetail repair` does this",
        )


@rule("Q122")
def quantize_without_saturation(subject: CheckInput) -> Iterator[Finding]:
    """A QuantizeLinear to float8 has `saturate=0`.

    ## What it finds
    In QDQ models: QuantizeLinear with `saturate=0`.

    ## Why it matters
    With this attribute ONNX, and so the simulation, turns values that are too large into NaN. The engine ignores it and
    saturates. The model that was simulated is not the model that runs.

    ## How to fix it
    Remove the attribute: the default is 1.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: the engine is byte-identical with and without the attribute.
    """
    for node in _quantizers(subject):
        if not attribute(node, "saturate", 1):
            message = f"{str(_place(node))!r} is quantized with saturate=0, which the builder ignores: it saturates"
            yield Finding("Q122", _place(node), message, Severity.WARNING, fix="remove the attribute saturate")


@rule("Q123")
def float16_scale_before_opset_19(subject: CheckInput) -> Iterator[Finding]:
    """A scale is float16 in a model whose opset is below 19.

    ## What it finds
    In QDQ models: float16 scales in a file whose opset is below 19.

    ## Why it matters
    ONNX supports float16 scales from opset 19 on. The builder accepts such a file, but ONNX Runtime does not load it:
    the model cannot be simulated, and another version of the parser may reject it.

    ## How to fix it
    Export with opset 19 or later; `dovetail repair` writes opset 21.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: opset 18 with float16 scales is built; onnxruntime 1.31.1 rejects it.
    """
    opset = int(subject.raw.meta.get(ORIGINAL_OPSET, HALF_SCALES_OPSET)) if subject.raw is not None else 0
    if subject.raw is None or opset >= HALF_SCALES_OPSET:
        return
    for node in _qdq_nodes(subject):
        scale = constant_of(node.inputs[1])
        if scale is not None and scale.dtype == np.float16:
            message = (
                f"the scale of {str(_place(node))!r} is float16, which requires opset 19; the file has opset {opset}"
            )
            yield Finding("Q123", _place(node), message, Severity.WARNING, fix="export with opset 19 or later")


@rule("Q124")
def scale_dtype_differs_from_input(subject: CheckInput) -> Iterator[Finding]:
    """The input of a QuantizeLinear and its scale have different types.

    ## What it finds
    In QDQ models: QuantizeLinear with a float16 input and a float32 scale, or the other way round.

    ## Why it matters
    Up to opset 22 ONNX requires the same type for both. The builder accepts the model, ONNX Runtime does not, so it
    cannot be simulated. This happens when a model is converted to float16 without its scales.

    ## How to fix it
    Convert the scale too, as `dovetail repair` does, or put a Cast before the QuantizeLinear.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: a float16 input with a float32 scale is built; onnxruntime 1.31.1 rejects
      it.
    """
    for node in _quantizers(subject):
        value, scale = node.inputs[0], constant_of(node.inputs[1])
        if value is None or scale is None or value.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            continue
        dtype = value.dtype.numpy()
        if dtype != scale.dtype:
            message = f"{str(_place(node))!r} is {dtype}, its scale is {scale.dtype}"
            yield Finding("Q124", _place(node), message, Severity.WARNING, fix=f"convert the scale to {dtype}")


@rule("Q126")
def unsupported_quantization_of_constant(subject: CheckInput) -> Iterator[Finding]:
    """A weight or a bias is quantized to a type, or with a zero point, that TensorRT does not support.

    ## What it finds
    In QDQ models: constants before a DequantizeLinear, or float constants before a QuantizeLinear, whose type
    is not int8, int4 or float8e4m3fn, or whose zero point is not 0. These are int32 biases, which most quantizers
    write, weights in uint8, uint4, int16 or uint16, and asymmetric weights. Activations have rules Q107 and Q121.

    ## Why it matters
    The parser rejects the whole model, whatever else is right about it. There is one exception: a float weight after a
    QuantizeLinear to uint8 with zero point 0 is silently computed in int8, and the outputs are wrong.

    ## How to fix it
    Leave biases in float: the builder adds them in float. Quantize weights to int8 with zero point 0. `dovetail repair`
    does both; a model of which only the weights are quantized needs `--precision`.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: a DequantizeLinear of an int32 bias is rejected ("input has type Int32 but
      must have type FP8, FP4, Int4, Int8"); a uint8 weight as well ("unsupported input type of UINT8"), and constants
      in uint4, int16 and uint16 ("Failed to import initializer"). One zero point other than 0 among those of the
      channels or blocks is enough ("Non-zero zero point is not supported"), in int8 and in int4, also in a
      QuantizeLinear. With a QuantizeLinear to uint8 and zero point 0 the layer list has a gemm with an Int8 weight.
    """
    seen: set[ir.Value] = set()
    for node in _qdq_nodes(subject):
        value, dtype, zero_point = node.inputs[0], quantized_type(node), _zero_point(node)
        if value is None or constant_of(value) is None or value in seen:
            continue
        if dtype in _TYPES_OF_CONSTANTS and not zero_point:
            continue
        seen.add(value)
        stored = str(dtype).lower() + (f" with zero point {zero_point}" if zero_point else "")
        computed = is_quantize(node) and dtype is ir.DataType.UINT8 and not zero_point
        effect = "the builder computes as int8" if computed else "the parser rejects"
        advice = "leave it in float" if dtype is ir.DataType.INT32 else "quantize it to int8 with zero point 0"
        message = f"constant {str(at_tensor(value))!r} is quantized to {stored}, which {effect}"
        yield Finding("Q126", at_tensor(value), message, Severity.ERROR, fix=f"{advice}: `dovetail repair` does this")


@rule("Q127")
def quantized_type_without_gpu_support(subject: CheckInput) -> Iterator[Finding]:
    """A model has tensors in float8 or int4, but its GPU does not support this type.

    ## What it finds
    In QDQ models: float8 on GPUs before sm89, and int4 on GPUs before sm80. There is one finding for each type, at the
    first such tensor, with the number of tensors.

    ## Why it matters
    The builder rejects the whole model, after the parser has accepted it: also if only weights have this type.

    ## How to fix it
    Quantize to int8: `dovetail repair --precision w8a8`, or `dovetail fit` from the float model. Or build for a GPU
    that supports the type: sm89 or later for float8, sm80 or later for int4.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, built for sm75, sm80 and sm86 with a MatMul, a Conv, a float8 weight beside a
      float activation, and a Q/DQ pair alone: "Cannot compile for target(s) sm86, because the model contains
      HW-specific datatypes: fp8_e4m3"; for sm75 with int4 weights: the same with "int4". Built for sm89, sm120 and
      sm121, float8 runs in FP8; int4 is built for sm80 and later.
    """
    gpu = subject.facts
    if not isinstance(gpu, Gpu):
        return
    supported = {ir.DataType.FLOAT8E4M3FN: gpu.has_fp8, ir.DataType.INT4: gpu.has_int4}
    tensors: defaultdict[ir.DataType, dict[str, Place]] = defaultdict(dict)
    for node in _qdq_nodes(subject):
        value, dtype = node.inputs[0], quantized_type(node)
        if dtype is None or supported.get(dtype, True):
            continue
        if is_quantize(node) or value is None or not is_quantize(value.producer()):
            tensors[dtype].setdefault(str(_place(node)), _place(node))
    for dtype, places in tensors.items():
        (first, place), name = next(iter(places.items())), str(dtype).lower()
        least = FIRST_INT4 if dtype is ir.DataType.INT4 else FIRST_FP8
        count = f"{len(places)} tensors are {name}, the first is {first!r}"
        yield Finding(
            "Q127",
            place,
            f"{count if len(places) > 1 else f'{first!r} is {name}'}, but {gpu.name} does not support {name}",
            Severity.ERROR,
            {"tensors": float(len(places))},
            f"quantize to int8 (`dovetail repair --precision w8a8`), or build for sm{least} or later",
        )


@rule("Q221")
def per_channel_activation(subject: CheckInput) -> Iterator[Finding]:
    """An activation is quantized with more than one scale.

    ## What it finds
    In QDQ models: activations quantized per channel or per block.

    ## Why it matters
    The builder silently accepts the model, but no 8-bit kernel takes such an activation: the builder dequantizes the
    weight and computes the MatMul, Gemm or Conv in float.

    ## How to fix it
    Quantize activations per tensor; per-channel scales are for weights.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: with an int8 activation that has one scale per channel, the layer list
      shows a fused kernel reading a Float weight, not an Int8 x Int8 GEMM.
    """
    for node in _quantizers(subject):
        scale = constant_of(node.inputs[1])
        if scale is not None and scale.size > 1:
            message = f"{str(_place(node))!r} has {scale.size} scales, so the operators that read it run in float"
            yield Finding("Q221", _place(node), message, Severity.ERROR, fix="quantize it per tensor, with one scale")


@rule("Q521")
def scale_outside_float16_range(subject: CheckInput) -> Iterator[Finding]:
    """A scale is outside the range of float16.

    ## What it finds
    Scales below the smallest normal float16 (6.1e-5) or above the largest (65504), in a plan or a QDQ model.

    ## Why it matters
    In a float16 graph the scale is float16 too. The parser rejects a scale that becomes zero ("Scale coefficients must
    all be positive"); one that becomes subnormal loses some or all of its precision. If only this scale stays in
    float32, the builder rejects a MatMul ("type mismatch between matmul operand scales"). `dovetail fit` raises small
    scales to the smallest normal float16, and keeps a Q/DQ pair with a large one in float32 between two Casts.

    ## How to fix it
    Find out why the range is so small, for example a dead channel or a tensor that is always zero. Or use `--option
    compute=fp32`.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: the parser rejects a float16 scale of 0; one of 6e-8 is built.
    """
    plan = subject.plan
    if plan is None:
        return
    graph = subject.model.graph
    values = {value.name: value for value in (*graph.inputs, *(value for node in graph for value in node.outputs))}
    nodes = {node.name: node for node in graph}
    choices = [(at_tensor(values[name]), choice) for name, choice in plan.tensors.items()]
    choices += [(at_edge(nodes[edge.node], edge.index), choice) for edge, choice in plan.edges.items()]
    for place, choice in choices:
        why = why_not_float16(choice.storage.scale) if isinstance(choice.storage, QParams) else ""
        if why:
            message = f"a scale of {str(place)!r} cannot be stored in float16: {why}"
            fix = "check why its range is so extreme, or use --option compute=fp32"
            yield Finding("Q521", place, message, Severity.WARNING, fix=fix)
