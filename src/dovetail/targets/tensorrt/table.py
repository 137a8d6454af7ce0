"""What TensorRT computes in 8 bit: products, between Quantize/Dequantize on their inputs; everything else is float.

Two products around a softmax are one kernel where the builder has one of that type and size; where it has none, they
stay in float16, in which it has one, because two products in 8 bit around a softmax in float are slower than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx_ir as ir

from dovetail.encoding import DType, Encoding, Granularity
from dovetail.model.attention import Attention, match_attention
from dovetail.model.edit import is_op, shape_of, weight_is_matrix
from dovetail.model.movers import MOVERS
from dovetail.numerics.grid import FLOAT8_HIGHEST
from dovetail.op_support import F32, FixedQParams, OpSupport, Precision, Signature, Slot, const, signature

_KNOWN = "tensorrt-rtx 1.7.1.116, layer lists of engines built for sm75, sm80, sm86, sm89, sm120 and sm121"
F8 = Encoding(DType.F8E4M3)
WF8 = Encoding(DType.F8E4M3, granularity=Granularity.AXIS)
S8 = Encoding(DType.S8, symmetric=True)
W8 = Encoding(DType.S8, symmetric=True, granularity=Granularity.AXIS)

# A softmax lies in [0, 1]: the largest stored value stands for one.
SOFTMAX_SCALE_FP8 = 1 / FLOAT8_HIGHEST
SOFTMAX_SCALE_INT8 = 1 / 127
# Sizes with a fused attention kernel (sm89: head sizes 8 to 256, 1 to 2048 keys; the others: three sizes each).
FP8_LEAST_KEYS = 32
INT8_MOST_KEYS = 512
INT8_HEAD_SIZES = (16, 32, 64)
# Above this the builder computes a convolution in float16, without a word (measured: 4 x 8 and 5 x 6, not 3 x 11).
FP8_LARGEST_WINDOW = 32
# How far from a product its softmax may be: reshapes, casts, scales and masks lie between.
_REACH = 8

FP8 = Precision("fp8", F8, WF8)
W8A8 = Precision("w8a8", S8, W8)


def table(float8: bool) -> Mapping[str, OpSupport]:
    """Products take 8 bit on both sides and write float, so that a bias or a residual is added in float."""
    ops = {op: OpSupport((signature(F32, out=F32),), shares=(0,), known_from=_KNOWN) for op in MOVERS}
    pairs = ((F8, WF8), (S8, W8)) if float8 else ((S8, W8),)
    linear = tuple(signature(a, const(w), F32, out=F32) for a, w in pairs)
    plain = signature(F32, F32, F32, out=F32)
    ops["Gemm"] = OpSupport((*linear, plain), known_from=_KNOWN)
    windows = tuple(replace(one, when=_small_window) if one.inputs[0].encoding == F8 else one for one in linear)
    ops["Conv"] = OpSupport((*windows, plain), known_from=_KNOWN)
    matrices = tuple(Signature((Slot(a), const(w)), F32, when=weight_is_matrix) for a, w in pairs)
    products = tuple(Signature((Slot(a), Slot(a)), F32, when=_fuses(a.dtype)) for a, _ in pairs)
    ops["MatMul"] = OpSupport((*matrices, *products, signature(F32, F32, out=F32)), known_from=_KNOWN)
    fixed = (FixedQParams(DType.F8E4M3, SOFTMAX_SCALE_FP8, 0), FixedQParams(DType.S8, SOFTMAX_SCALE_INT8, 0))
    ops["Softmax"] = OpSupport((signature(F32, out=F32),), fixed=fixed, known_from=_KNOWN)
    return ops


def no_kernel(attention: Attention, dtype: DType) -> str:
    """Why the builder has no fused kernel of this type for an attention; empty where it has one."""
    key = shape_of(attention.key)
    keys, size = (key[-1] if key else None), attention.head_dim
    if dtype is DType.F8E4M3 and keys is not None and keys < FP8_LEAST_KEYS:
        return f"FP8 attention is fused from {FP8_LEAST_KEYS} keys on, here are {keys}"
    if dtype is DType.S8 and keys is not None and keys > INT8_MOST_KEYS:
        return f"INT8 attention is fused up to {INT8_MOST_KEYS} keys, here are {keys}"
    if dtype is DType.S8 and size is not None and size not in INT8_HEAD_SIZES:
        return f"INT8 attention is fused at head sizes {', '.join(map(str, INT8_HEAD_SIZES))}, here it is {size}"
    if dtype is DType.S8 and not _feeds_products(attention.mix.outputs[0]):
        return "INT8 attention is fused only in front of a product in INT8"
    return ""


def _feeds_products(value: ir.Value) -> bool:
    """Whether everything that reads a value, moved or not, is a product."""
    users = [user for user, _ in value.uses()]
    return (
        bool(users)
        and not value.is_graph_output()
        and all(
            is_op(user, "Conv", "Gemm", "MatMul")
            or (is_op(user, *MOVERS) and all(_feeds_products(output) for output in user.outputs))
            for user in users
        )
    )


def _small_window(node: ir.Node) -> str:
    weight = shape_of(node.inputs[1])
    window = math.prod(weight[2:]) if weight else FP8_LARGEST_WINDOW + 1
    if window <= FP8_LARGEST_WINDOW:
        return ""
    return f"an FP8 convolution has windows of at most {FP8_LARGEST_WINDOW} places, here are {window}"


def _fuses(dtype: DType) -> Callable[[ir.Node], str]:
    def when(node: ir.Node) -> str:
        attention = attention_of(node)
        return "" if attention is None else no_kernel(attention, dtype)

    return when


def attention_of(node: ir.Node) -> Attention | None:
    """The attention that a product belongs to, as the one in front of its softmax or behind it."""
    for softmax in (*_softmaxes_behind(node.outputs[0], _REACH), *_softmaxes_before(node.inputs[0], _REACH)):
        found = match_attention(softmax)
        if found is not None and node in (found.scores, found.mix):
            return found
    return None


def _softmaxes_behind(value: ir.Value, reach: int) -> list[ir.Node]:
    found: list[ir.Node] = []
    for user, _ in value.uses() if reach else ():
        if is_op(user, "Softmax"):
            found.append(user)
        elif not is_op(user, "MatMul") and user.outputs:
            found += _softmaxes_behind(user.outputs[0], reach - 1)
    return found


def _softmaxes_before(value: ir.Value | None, reach: int) -> list[ir.Node]:
    node = None if value is None else value.producer()
    if node is None or not reach:
        return []
    if is_op(node, "Softmax"):
        return [node]
    # Behind a softmax the data is input 0, or the last input of the Where that guards it.
    return _softmaxes_before(node.inputs[2 if is_op(node, "Where") else 0], reach - 1) if node.inputs else []
