"""Q1, Q2 and Q5 on TensorRT: types and scales that are taken for others, without a word or with a refusal."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.finding import Finding, Place, Severity
from dovetail.model.edit import attribute, constant_of
from dovetail.model.place import at_edge, at_tensor
from dovetail.model.read import ORIGINAL_OPSET
from dovetail.passes.as_float16 import HALF_SCALES_OPSET, survives
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule


def _quantizers(subject: CheckInput) -> Iterator[ir.Node]:
    """The Quantize nodes of activations, in the file as it is."""
    for node in subject.raw.graph if subject.raw is not None else ():
        if is_quantize(node) and constant_of(node.inputs[0]) is None:
            yield node


def _place(node: ir.Node) -> Place:
    """The tensor that is quantized, or read back."""
    value = node.inputs[0] if is_quantize(node) else None
    return at_tensor(node.outputs[0] if value is None else value)


@rule("Q121")
def unsigned_activation(subject: CheckInput) -> Iterator[Finding]:
    """An activation is stored as uint8, or with a zero point.

    ## What it finds
    In QDQ models: Quantize nodes of activations whose type is uint8, or whose zero point is not 0.

    ## Why it matters
    TensorRT has signed symmetric int8 only. A zero point that is not 0 is refused. uint8 with zero point 0 is taken
    without a word and computed as int8: everything above 127 steps is cut off, and the numbers are wrong.

    ## How to fix it
    Store activations as int8 with zero point 0; `dovetail repair` does so from the ranges in the file.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: uint8 with zero point 0 gives a gemm Int8 -> Float; zero point 128
      is refused by the parser ("Non-zero zero point is not supported").
    """
    for node in _quantizers(subject):
        points = constant_of(node.inputs[2]) if len(node.inputs) > 2 else np.zeros((), np.uint8)
        if points is None or not (points.dtype == np.uint8 or (points.dtype == np.int8 and points.any())):
            continue
        becomes = "the builder refuses" if points.any() else "the builder takes for int8: what is above 127 is cut off"
        stored = f"{points.dtype} with zero point {int(points.reshape(-1)[0])}"
        yield Finding(
            "Q121",
            _place(node),
            f"{str(_place(node))!r} is stored as {stored}, which {becomes}",
            Severity.ERROR,
            fix="store it as int8 with zero point 0: `dovetail repair` does",
        )


@rule("Q122")
def saturation_switched_off(subject: CheckInput) -> Iterator[Finding]:
    """A Quantize to float8 says that it does not saturate.

    ## What it finds
    In QDQ models: QuantizeLinear with `saturate=0`.

    ## Why it matters
    ONNX then makes NaN of what is too large, and so does a simulation; the engine saturates all the same. What was
    tested is not what runs.

    ## How to fix it
    Leave the attribute out: 1 is the default.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: the engine is the same to the byte with and without it.
    """
    for node in _quantizers(subject):
        if not attribute(node, "saturate", 1):
            message = f"{str(_place(node))!r} is quantized with saturate=0, which the builder ignores: it saturates"
            yield Finding("Q122", _place(node), message, Severity.WARNING, fix="leave saturate out")


@rule("Q123")
def half_scale_before_opset_19(subject: CheckInput) -> Iterator[Finding]:
    """A scale is float16 in a file of an opset before 19.

    ## What it finds
    In QDQ models: float16 scales where the file's opset is below 19.

    ## Why it matters
    ONNX knows float16 scales from opset 19 on. The builder takes such a file, ONNX Runtime does not load it: nothing
    here can say what it computes, and another version of the parser may refuse it.

    ## How to fix it
    Export with opset 19 or later; `dovetail repair` writes opset 21.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: opset 18 with float16 scales is built; onnxruntime 1.31.1 refuses it.
    """
    opset = int(subject.raw.meta.get(ORIGINAL_OPSET, HALF_SCALES_OPSET)) if subject.raw is not None else 0
    if subject.raw is None or opset >= HALF_SCALES_OPSET:
        return
    for node in subject.raw.graph:
        scale = constant_of(node.inputs[1]) if is_quantize(node) or is_dequantize(node) else None
        if scale is not None and scale.dtype == np.float16:
            message = (
                f"the scale of {str(_place(node))!r} is float16, which ONNX has from opset 19 on; the file has {opset}"
            )
            yield Finding("Q123", _place(node), message, Severity.WARNING, fix="export with opset 19 or later")


@rule("Q124")
def scale_of_another_type(subject: CheckInput) -> Iterator[Finding]:
    """What is quantized and its scale have different types.

    ## What it finds
    In QDQ models: QuantizeLinear whose input is float16 and whose scale is float32, or the other way round.

    ## Why it matters
    ONNX wants one type for both up to opset 22. The builder takes it, ONNX Runtime does not, so that the file cannot
    be simulated. It is what is left when a model is converted to float16 and its scales are forgotten.

    ## How to fix it
    Convert the scale too, or put a Cast in front of the Quantize; `dovetail repair` does the former.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: float16 data with a float32 scale is built; onnxruntime 1.31.1 refuses it.
    """
    for node in _quantizers(subject):
        value, scale = node.inputs[0], constant_of(node.inputs[1])
        if value is None or scale is None or value.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            continue
        if value.dtype.numpy() != scale.dtype:
            message = f"{str(_place(node))!r} is {value.dtype.name.lower()}, its scale is {scale.dtype}"
            yield Finding("Q124", _place(node), message, Severity.WARNING, fix="give the scale the type of the data")


@rule("Q221")
def activation_per_channel(subject: CheckInput) -> Iterator[Finding]:
    """An activation has one scale per channel.

    ## What it finds
    In QDQ models: activations with a scale per channel or per block.

    ## Why it matters
    The builder takes it without a word, but has no product for it: the weight is read back into float, and the product
    is computed in float.

    ## How to fix it
    Use one scale for an activation; scales per channel are for weights.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: int8 with a scale per channel gives a fused kernel with a Float weight in
      place of a gemm Int8 x Int8.
    """
    for node in _quantizers(subject):
        scale = constant_of(node.inputs[1])
        if scale is not None and scale.size > 1:
            message = f"{str(_place(node))!r} has {scale.size} scales: what multiplies it is computed in float"
            yield Finding("Q221", _place(node), message, Severity.ERROR, fix="use one scale for an activation")


@rule("Q521")
def scale_beyond_float16(subject: CheckInput) -> Iterator[Finding]:
    """A scale cannot be kept in float16.

    ## What it finds
    Scales below the smallest normal float16 (6.1e-5) or above the largest (65504), of a plan or a QDQ model.

    ## Why it matters
    In a graph that computes in float16 the scale is float16 too. One that becomes zero is refused ("Scale coefficients
    must all be positive"); one that becomes subnormal loses up to all of its digits. `dovetail fit` keeps such a pair
    in float32 between two Casts.

    ## How to fix it
    Look at why the range is so small: a dead channel, a tensor that is always zero. Or `--option compute=fp32`.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89: a float16 scale of 0 is refused by the parser, one of 6e-8 is built.
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
        why = survives(choice.storage.scale) if isinstance(choice.storage, QParams) else ""
        if why:
            message = f"a scale of {str(place)!r} cannot be float16: {why}"
            yield Finding("Q521", place, message, Severity.WARNING, fix="look at its range, or compute in float32")
