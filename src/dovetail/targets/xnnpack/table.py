"""The op table of ``xnnpack``: the operators that XNNPACK runs in int8.

All others run in float: activation-by-activation MatMul, Softmax, Gelu, layer norm, Sigmoid. XNNPACK has no int8
kernels for them, and quantizing their inputs and outputs would only cost accuracy and time.
"""

from __future__ import annotations

import math
from dataclasses import replace

import onnx_ir as ir

from dovetail.encoding import DType, Encoding
from dovetail.model.edit import attribute, reduced_axes, shape_of, why_weight_not_matrix
from dovetail.model.slices import slice_ranges
from dovetail.op_support import B32, F32, W8, OpSupport, Precision, Signature, Slot, bias, const, signature

_KNOWN = "executorch 1.5.1, serialized program read back"
# Activations are signed with a zero point: a single unsigned one cannot be lowered (rule Q132).
A8S = Encoding(DType.S8)
STATIC = Precision("w8a8", A8S, W8)
# The input of a linear layer is quantized row by row at run time; everything else is float.
DYNAMIC = Precision("w8a8-dynamic", F32, W8)
# Lowered to reshape, permute or slice, which copy elements and require the same qparams on input and output.
_MOVERS = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_FOLLOWERS = ("Add", "Mul", "Sub")
_CLAMPS = ("Clip", "Relu")


def _table() -> dict[str, OpSupport]:
    same_dtype = (signature(A8S, out=A8S), signature(F32, out=F32))
    table = {op: OpSupport(same_dtype, shares=(0,), known_from=_KNOWN) for op in _MOVERS}
    table["Slice"] = OpSupport((_int8_if(_slices_one_axis), signature(F32, out=F32)), shares=(0,), known_from=_KNOWN)
    table["MaxPool"] = OpSupport((_int8_if(_pools), signature(F32, out=F32)), shares=(0,), known_from=_KNOWN)
    global_max = (_int8_if(_pools_an_image), signature(F32, out=F32))
    table["GlobalMaxPool"] = OpSupport(global_max, shares=(0,), known_from=_KNOWN)
    all_inputs = (Signature((Slot(A8S),), A8S, variadic=True), Signature((Slot(F32),), F32, variadic=True))
    table["Concat"] = OpSupport(all_inputs, shares=None, joins=True, known_from=_KNOWN)
    table |= {op: OpSupport(all_inputs, stays_float_between_float=True, known_from=_KNOWN) for op in _FOLLOWERS}
    table |= {op: OpSupport(same_dtype, stays_float_between_float=True, known_from=_KNOWN) for op in _CLAMPS}
    global_pool = (_int8_if(_has_rank_four), signature(F32, out=F32))
    table["GlobalAveragePool"] = OpSupport(global_pool, stays_float_between_float=True, known_from=_KNOWN)
    mean = (_int8_if(_is_spatial_mean), signature(F32, out=F32))
    table["ReduceMean"] = OpSupport(mean, stays_float_between_float=True, known_from=_KNOWN)
    linear = signature(A8S, const(W8), bias(B32), out=A8S)
    in_float = signature(F32, F32, F32, out=F32)
    # XNNPACK's kernels for rows that are quantized at run time have one scale per channel of the weight.
    by_channel = Slot(W8, constant=True, per_channel=True)
    dynamic = signature(F32, by_channel, F32, out=F32)
    gemm = (*(replace(row, when=_is_linear_layer) for row in (linear, dynamic)), in_float)
    table["Gemm"] = OpSupport(gemm, known_from=_KNOWN)
    by_weight = (signature(A8S, const(W8), out=A8S), signature(F32, by_channel, out=F32))
    matmul = (*(replace(row, when=why_weight_not_matrix) for row in by_weight), signature(F32, F32, out=F32))
    table["MatMul"] = OpSupport(matmul, known_from=_KNOWN)
    table["Conv"] = OpSupport((replace(linear, when=_up_to_two_axes), in_float), known_from=_KNOWN)
    table["ConvTranspose"] = OpSupport((replace(linear, when=_one_group), in_float), known_from=_KNOWN)
    return table


def _int8_if(condition: object) -> Signature:
    return replace(signature(A8S, out=A8S), when=condition)  # type: ignore[arg-type]


def _slices_one_axis(node: ir.Node) -> str:
    if shape_of(node.inputs[1]) != (1,):
        return "a Slice over several axes becomes several slices, without int8 between them"
    steps = [cut.step for cut in (slice_ranges(node) or {}).values()]
    return "" if steps == [1] else "XNNPACK supports only slices with step 1"


def _pools_an_image(node: ir.Node) -> str:
    shape = shape_of(node.inputs[0])
    if shape is None or len(shape) != 4 or math.prod(shape[2:]) == 1:
        return "XNNPACK supports pooling over the last two axes of four, of more than one element"
    return ""


def _pools(node: ir.Node) -> str:
    kernel, strides = attribute(node, "kernel_shape", ()), attribute(node, "strides", ())
    if any(stride > size for stride, size in zip(strides, kernel, strict=False)):
        return "XNNPACK does not support pooling with a stride larger than the kernel"
    pads = attribute(node, "pads", ())
    if attribute(node, "auto_pad", "NOTSET") != "NOTSET" or list(pads[:2]) != list(pads[2:]):
        return "padding that differs between the two sides of an axis is computed in float"
    return _pools_an_image(node)


def _is_linear_layer(node: ir.Node) -> str:
    plain = attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0 and not attribute(node, "transA", 0)
    bias_shape, out = shape_of(node.inputs[2]) if len(node.inputs) > 2 else None, shape_of(node.outputs[0])
    is_row = bias_shape is None or out is None or bias_shape == out[1:]
    return (
        "" if plain and is_row else "XNNPACK runs only a Gemm without alpha, beta and transA, with a row bias, in int8"
    )


def _up_to_two_axes(node: ir.Node) -> str:
    shape = shape_of(node.inputs[1])
    if shape is None or len(shape) > 4:
        return "XNNPACK supports convolutions over one or two axes"
    return ""


def _has_rank_four(node: ir.Node) -> str:
    shape = shape_of(node.inputs[0])
    return "" if shape is not None and len(shape) == 4 else "XNNPACK supports means over the last two axes of four"


def _is_spatial_mean(node: ir.Node) -> str:
    last = reduced_axes(node) == (2, 3)
    if not last or not attribute(node, "keepdims", 1):
        return "XNNPACK supports an int8 mean only over the last two axes of four, with keepdims"
    return _has_rank_four(node)


def _one_group(node: ir.Node) -> str:
    shape = shape_of(node.inputs[1])
    if attribute(node, "group", 1) != 1 or shape is None or math.prod(shape) == 0:
        return "XNNPACK does not support grouped transposed convolutions with per-channel scales"
    if _pads_the_end_more(node):
        return "more padding at the end of an axis cuts its output off, without int8 before the cut"
    return ""


def _pads_the_end_more(node: ir.Node) -> bool:
    """Whether a transposed convolution may have more padding at the end of an axis than at its beginning."""
    pads = attribute(node, "pads", ())
    begins, ends = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    is_automatic = attribute(node, "auto_pad", "NOTSET").startswith("SAME")
    is_automatic = is_automatic or attribute(node, "output_shape", None) is not None
    return is_automatic or any(end > begin for begin, end in zip(begins, ends, strict=True))


TABLE = _table()
