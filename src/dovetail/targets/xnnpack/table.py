"""What XNNPACK runs in int8: the op table of ``xnnpack``.

What is not here runs in float: products of two activations, softmax, gelu, layer norm, sigmoid. XNNPACK has no int8
form of them, and integers around them would only cost accuracy and time.
"""

from __future__ import annotations

import math
from dataclasses import replace

import onnx_ir as ir

from dovetail.encoding import DType, Encoding
from dovetail.model.edit import attribute, constant_of, shape_of, weight_is_matrix
from dovetail.model.slices import cuts_of
from dovetail.op_support import B32, F32, W8, OpSupport, Precision, Signature, Slot, bias, const, signature

_KNOWN = "executorch 1.5.1, serialized program read back"
# Activations are signed and have a zero point: unsigned ones are refused.
A8S = Encoding(DType.S8)
STATIC = Precision("w8a8", A8S, W8)
# What a linear layer reads is quantized row by row as it runs; everything else is float.
DYNAMIC = Precision("w8a8-dynamic", F32, W8)
# Run as reshape, permute or slice, which move bytes and refuse other numbers behind them than in front.
_MOVERS = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_FOLLOWERS = ("Add", "Mul", "Sub")
_CLAMPS = ("Clip", "Relu")


def _table() -> dict[str, OpSupport]:
    moved = (signature(A8S, out=A8S), signature(F32, out=F32))
    table = {op: OpSupport(moved, shares=(0,), known_from=_KNOWN) for op in _MOVERS}
    table["Slice"] = OpSupport((_when(_steps_of_one), signature(F32, out=F32)), shares=(0,), known_from=_KNOWN)
    table["MaxPool"] = OpSupport((_when(_pools), signature(F32, out=F32)), shares=(0,), known_from=_KNOWN)
    alike = (Signature((Slot(A8S),), A8S, variadic=True), Signature((Slot(F32),), F32, variadic=True))
    table["Concat"] = OpSupport(alike, shares=None, joins=True, known_from=_KNOWN)
    table |= {op: OpSupport(alike, follows=True, known_from=_KNOWN) for op in _FOLLOWERS}
    table |= {op: OpSupport(moved, follows=True, known_from=_KNOWN) for op in _CLAMPS}
    table["GlobalAveragePool"] = OpSupport(
        (_when(_over_a_picture), signature(F32, out=F32)), follows=True, known_from=_KNOWN
    )
    table["ReduceMean"] = OpSupport((_when(_means_a_picture), signature(F32, out=F32)), follows=True, known_from=_KNOWN)
    linear = signature(A8S, const(W8), bias(B32), out=A8S)
    in_float = signature(F32, F32, F32, out=F32)
    rows = signature(F32, const(W8), F32, out=F32)
    gemm = (*(replace(one, when=_is_layer) for one in (linear, rows)), in_float)
    table["Gemm"] = OpSupport(gemm, known_from=_KNOWN)
    matrices = (signature(A8S, const(W8), out=A8S), signature(F32, const(W8), out=F32))
    matmul = (*(replace(one, when=weight_is_matrix) for one in matrices), signature(F32, F32, out=F32))
    table["MatMul"] = OpSupport(matmul, known_from=_KNOWN)
    table["Conv"] = OpSupport((replace(linear, when=_up_to_two_axes), in_float), known_from=_KNOWN)
    table["ConvTranspose"] = OpSupport((replace(linear, when=_one_group), in_float), known_from=_KNOWN)
    return table


def _when(asked: object) -> Signature:
    return replace(signature(A8S, out=A8S), when=asked)  # type: ignore[arg-type]


def _steps_of_one(node: ir.Node) -> str:
    if shape_of(node.inputs[1]) != (1,):
        return "a slice over several axes is several, with nothing in integers between them"
    steps = [taken.step for taken in (cuts_of(node) or {}).values()]
    return "" if steps == [1] else "a slice with steps runs outside XNNPACK"


def _pools(node: ir.Node) -> str:
    kernel, strides = attribute(node, "kernel_shape", ()), attribute(node, "strides", ())
    if any(stride > size for stride, size in zip(strides, kernel, strict=False)):
        return "XNNPACK takes no pooling that leaves elements out"
    pads = attribute(node, "pads", ())
    if attribute(node, "auto_pad", "NOTSET") != "NOTSET" or list(pads[:2]) != list(pads[2:]):
        return "what is padded on one side only is padded in float"
    return ""


def _is_layer(node: ir.Node) -> str:
    plain = attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0 and not attribute(node, "transA", 0)
    added, out = shape_of(node.inputs[2]) if len(node.inputs) > 2 else None, shape_of(node.outputs[0])
    row = added is None or out is None or added == out[1:]
    return "" if plain and row else "only a plain linear layer has an int8 form"


def _up_to_two_axes(node: ir.Node) -> str:
    shape = shape_of(node.inputs[1])
    if shape is None or len(shape) > 4:
        return "XNNPACK has convolutions over one or two axes"
    return ""


def _over_a_picture(node: ir.Node) -> str:
    shape = shape_of(node.inputs[0])
    return "" if shape is not None and len(shape) == 4 else "XNNPACK takes means over the last two axes of four"


def _means_a_picture(node: ir.Node) -> str:
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes", None)
    last = axes is not None and sorted(int(axis) % 4 for axis in axes) == [2, 3]
    if not last or not attribute(node, "keepdims", 1):
        return "XNNPACK has an int8 mean over the last two axes of four, which are kept, only"
    return _over_a_picture(node)


def _one_group(node: ir.Node) -> str:
    shape = shape_of(node.inputs[1])
    if attribute(node, "group", 1) != 1 or shape is None or math.prod(shape) == 0:
        return "XNNPACK has no grouped transposed convolution with one scale per channel"
    return ""


TABLE = _table()
