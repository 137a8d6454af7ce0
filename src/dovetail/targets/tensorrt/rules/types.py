"""Q1, Q2 and Q5 on TensorRT: types and scales that the builder rejects or silently treats as others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, QParams
from dovetail.finding import Finding, Place, Severity
from dovetail.model.edit import attribute, constant_of
from dovetail.model.place import at_edge, at_tensor
from dovetail.model.read import ORIGINAL_OPSET
from dovetail.passes.as_float16 import HALF_SCALES_OPSET, why_not_float16
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule

# float8e4m3fn, int4 and int8: "must have type FP8, FP4, Int4, Int8".
_TYPES_OF_CONSTANTS = (None, ir.DataType.INT8, ir.DataType.INT4, ir.DataType.FLOAT8E4M3FN)


def _quantizers(subject: CheckInput) -> Iterator[ir.Node]:
    """The QuantizeLinear nodes of activations, in the file as it was read."""
    for node in subject.raw.graph if subject.raw is not None else ():
        if is_quantize(node) and constant_of(node.inputs[0]) is None:
            yield node


def _place(node: ir.Node) -> Place:
    """The tensor that a node quantizes, or the output of a DequantizeLinear."""
    value = node.inputs[0] if is_quantize(node) else None
    return at_tensor(node.outputs[0] if value is None else value)


def _no_zero_point(node: ir.Node) -> Array:
    """The zero point that a QuantizeLinear without one has: zero, in its output type, which is uint8 by default."""
    return np.zeros((), ir.DataType(attribute(node, "output_dtype", 0) or ir.DataType.UINT8).numpy())


@rule("Q121")
def unsigned_or_asymmetric_activation(subject: CheckInput) -> Iterator[Finding]:
    """An activation is quantized to uint8, or with a zero point other than 0.

    ## What it finds
    In QDQ models: QuantizeLinear nodes of activations whose type is uint8 or whose zero point is not 0.

    ## Why it matters
    TensorRT supports only signed, symmetric int8. It rejects a zero point other than 0. It silently accepts uint8 with
    zero point 0 but computes in int8: every quantized value above 127 saturates, and the outputs are wrong.

    ## How to fix it
    Quantize activations to int8 with zero point 0; `dovetail repair` does this from the ranges in the file.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: uint8 with zero point 0 gives a gemm Int8 -> Float; the parser
      rejects zero point 128 ("Non-zero zero point is not supported").
    """
    for node in _quantizers(subject):
        points = constant_of(node.inputs[2]) if len(node.inputs) > 2 else _no_zero_point(node)
        if points is None or not (points.dtype == np.uint8 or (points.dtype == np.int8 and points.any())):
            continue
        effect = "rejects" if points.any() else "computes as int8: values above 127 saturate"
        stored = f"{points.dtype} with zero point {int(points.reshape(-1)[0])}"
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
    for node in subject.raw.graph:
        scale = constant_of(node.inputs[1]) if is_quantize(node) or is_dequantize(node) else None
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
    Convert the scale too, as `dovetail repair` does, or put a Cast in front of the QuantizeLinear.

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
def unsupported_type_of_constant(subject: CheckInput) -> Iterator[Finding]:
    """A weight or a bias is quantized to a type that the parser rejects.

    ## What it finds
    In QDQ models: constants in front of a DequantizeLinear whose type is not int8, int4 or float8e4m3fn: int32 biases,
    which most quantizers write, and weights in uint8, uint4, int16 or uint16. Activations have rules Q107 and Q121.

    ## Why it matters
    The parser rejects the whole model, whatever else is right about it.

    ## How to fix it
    Leave biases in float: the builder adds them in float. Quantize weights to int8 with zero point 0. `dovetail repair`
    does both; a model of which only the weights are quantized needs `--precision`.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: a DequantizeLinear of an int32 bias is rejected ("input has type Int32 but
      must have type FP8, FP4, Int4, Int8"); a uint8 weight as well ("unsupported input type of UINT8"), and constants
      in uint4, int16 and uint16 ("Failed to import initializer").
    """
    seen: set[ir.Value] = set()
    for node in subject.raw.graph if subject.raw is not None else ():
        value = node.inputs[0] if is_dequantize(node) else None
        array = constant_of(value)
        if value is None or array is None or value in seen or value.dtype in _TYPES_OF_CONSTANTS:
            continue
        seen.add(value)
        name, dtype = str(at_tensor(value)), array.dtype
        advice = "leave it in float" if value.dtype is ir.DataType.INT32 else "quantize it to int8 with zero point 0"
        message = f"constant {name!r} is {dtype}, which the parser rejects"
        yield Finding("Q126", at_tensor(value), message, Severity.ERROR, fix=f"{advice}: `dovetail repair` does this")


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
