"""Q1 on TensorRT: operands of one MatMul, Gemm or Conv that no kernel multiplies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from dovetail.encoding import DType, Granularity, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.attention import find_attention
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import attribute, constant_of, is_op
from dovetail.model.place import at_node
from dovetail.qdq.params import is_dequantize
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import say
from dovetail.rules.rule import rule
from dovetail.storage import Plan, Storage
from dovetail.targets.tensorrt.rules.storage import operand_source

# What the builder computes in float8 and in int8. It reads uint8 as int8, which Q121 reports, and casts int4 to int8.
_KERNELS = ({"float8e4m3fn"}, {"int8", "uint8", "int4"})


_Operand = tuple[ir.Value | None, Storage]


def _kernel(dtype: str) -> int | None:
    """Which of the kernels a type belongs to; None for types without one, which Q126 reports."""
    return next((number for number, dtypes in enumerate(_KERNELS) if dtype in dtypes), None)


def _matrix_ops(graph: ir.Graph, plan: Plan) -> Iterator[tuple[ir.Node, tuple[_Operand, _Operand]]]:
    """The operators with 8-bit kernels, with their two operands and how these are stored."""
    for node in graph:
        if is_op(node, "Conv", "Gemm", "MatMul"):
            yield node, (operand_source(node, 0, plan), operand_source(node, 1, plan))


def _keeps_int4(node: ir.Node, stored: Sequence[Storage]) -> bool:
    """Whether the builder does not cast an int4 operand to int8: in a Conv, or if it has one scale."""
    int4 = [storage for storage in stored if isinstance(storage, QParams) and storage.dtype is DType.S4]
    return len(int4) == 1 and (is_op(node, "Conv") or int4[0].encoding.granularity is Granularity.TENSOR)


@rule("Q125")
def operands_of_different_types(subject: CheckInput) -> Iterator[Finding]:
    """The two operands of a MatMul, Gemm or Conv are quantized to different types, or only the activation is.

    ## What it finds
    In QDQ models: MatMul, Gemm and Conv with a float8 activation and an int8 or int4 weight, or the reverse, and those
    with an int8 activation and an int4 weight in a Conv or with one scale for the whole weight, which is an error; and
    those with a quantized activation beside an operand in float, which is a warning. A quantized weight beside a float
    activation is not reported, nor is an attention block, for which Q421 says more, nor uint8 beside int8 (Q121), nor
    an int4 weight with a scale per channel in a MatMul or Gemm, which the builder casts to int8. Blocks have rule Q129.
    A Q/DQ pair counts also before a transpose, a reshape, a Cast or a scale, which the builder fuses.

    ## Why it matters
    The kernels have one type for both operands. The builder rejects two types, after the parser has accepted them.
    Beside a float weight it silently multiplies in float: the Q/DQ pair costs accuracy and time, and gains nothing.

    ## How to fix it
    Quantize both operands to the same type: float8 or int8. `dovetail repair` does this, with calibration data where a
    scale is missing. Or remove the Q/DQ pair of the activation.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: float8 x int8 and float8 x int4 (per tensor, per channel and in
      blocks) are rejected ("Input and filter have to be the same type"), and so are int8 x int4 with one scale in a
      MatMul or Gemm, and with any scales in a Conv ("CHECK(dtype == W.type()) failed"). With a scale per channel
      int8 x int4 is built as Int8 x Int8; with an int8 activation and a float weight the layer list has a fused kernel
      that reads a Float weight.
    """
    plan = subject.plan
    if plan is None:
        return
    in_attention = {node for block in find_attention(subject.model.graph) for node, _ in block.operands.values()}
    for node, operands in _matrix_ops(subject.model.graph, plan):
        if node in in_attention:
            continue
        stored = [storage for _, storage in operands]
        dtypes = [str(storage.dtype) for storage in stored]
        quantized = [isinstance(storage, QParams) for storage in stored]
        beside_float = any(q and constant_of(v) is None for q, (v, _) in zip(quantized, operands, strict=True))
        kernels = {_kernel(dtype) for dtype in dtypes}
        if all(quantized) and None not in kernels and (len(kernels) > 1 or _keeps_int4(node, stored)):
            severity, effect = Severity.ERROR, "which the builder rejects"
        elif not all(quantized) and beside_float:
            severity, effect = Severity.WARNING, "so that it runs in float"
        else:
            continue
        message = f"{say(node)} multiplies {' by '.join(dtypes)}, {effect}"
        yield Finding("Q125", at_node(node), message, severity, fix="quantize both operands to the same 8-bit type")


@rule("Q128")
def scales_of_different_types(subject: CheckInput) -> Iterator[Finding]:
    """The activation and the weight of a float16 MatMul have one scale in float16 and one in float32.

    ## What it finds
    In QDQ models: MatMul and Gemm with a float16 output, a scale per channel of the weight, and a scale of the
    activation that has another float type, in one of these cases: the activation has a higher rank than the weight; the
    weight is transposed; or the scale of the activation is float32, and it is transposed or reshaped before the
    MatMul.

    ## Why it matters
    The builder rejects the whole model, after the parser has accepted it. This happens when scales that are too small
    for float16 stay in float32 while the others are converted.

    ## How to fix it
    Store both scales in the same type. `dovetail repair` does this, and raises scales that are too small for float16.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, built for sm89 in int8 and float8, and for sm75, sm80 and sm120 in int8: "type
      mismatch between matmul operand scales" for activations of rank 3 and 4 with a weight of rank 2, and at rank 2
      with transB or a Transpose of the weight. Accepted are the same in a float32 graph, a weight with one scale, two
      activations, convolutions, and a plain MatMul of two operands of equal rank, or by a weight of a higher one.
    """
    for node in subject.raw.graph if subject.raw is not None else ():
        if not is_op(node, "Gemm", "MatMul") or node.outputs[0].dtype is not ir.DataType.FLOAT16:
            continue
        left, right = (_dequantized(value) for value in node.inputs[:2])
        if left is None or right is None or not right.per_channel or left.scale_dtype == right.scale_dtype:
            continue
        moved = right.moved or (left.moved and left.scale_dtype == np.float32)
        if _has_higher_rank(*node.inputs[:2]) or moved or attribute(node, "transB", 0):
            types = f"{left.scale_dtype} and {right.scale_dtype}"
            message = f"the scales of the operands of {say(node)} are {types}, which the builder rejects"
            yield Finding("Q128", at_node(node), message, Severity.ERROR, fix="store both scales in the same type")


def _has_higher_rank(left: ir.Value | None, right: ir.Value | None) -> bool:
    """Whether both ranks are known and the first is higher; dimensions may be unknown."""
    shapes = [None if value is None else value.shape for value in (left, right)]
    ranks = [len(shape) for shape in shapes if shape is not None]
    return len(ranks) > 1 and ranks[0] > ranks[1]


class _Dequantized(NamedTuple):
    """An operand that comes from a DequantizeLinear.

    ``per_channel``: whether it is a constant with several scales. ``moved``: whether an operator after the
    DequantizeLinear moves its data.
    """

    scale_dtype: np.dtype[Any]
    per_channel: bool
    moved: bool


def _dequantized(value: ir.Value | None) -> _Dequantized | None:
    """The DequantizeLinear that an operand comes from, after any Casts and data-movement operators."""
    moved = False
    while value is not None and (node := value.producer()) is not None:
        scale = constant_of(node.inputs[1]) if is_dequantize(node) else None
        if scale is not None:
            return _Dequantized(scale.dtype, constant_of(node.inputs[0]) is not None and scale.size > 1, moved)
        if not is_op(node, "Cast", *DATA_MOVEMENT_OPS):
            break
        moved = moved or not is_op(node, "Cast", "Identity")
        value = node.inputs[0]
    return None


@rule("Q129")
def blocks_beside_quantized_activation(subject: CheckInput) -> Iterator[Finding]:
    """A weight that is quantized in blocks is multiplied by a quantized activation.

    ## What it finds
    In QDQ models: MatMul, Gemm and Conv with a quantized activation, and a weight in int4, int8 or float8 that has
    several blocks, each with its own scale, along an axis.

    ## Why it matters
    8-bit kernels add up all products before they multiply by a scale, so they cannot have a scale per block. The
    builder rejects the whole model, or silently builds an engine that multiplies the sum over all blocks by one scale
    per channel, so that the outputs are wrong. Which of the two depends on the ranks and on transposes.

    ## How to fix it
    Quantize the weight with one scale per output channel. Or remove the Q/DQ pair of the activation: beside a float16
    activation blocks are supported in a MatMul and Gemm.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm80, sm89 and sm120, built with blocks of 16 to 128: rejected for activations
      of rank 3, and with transB ("operand.h:524: CHECK(is_constant()) failed"). At rank 2 the layer list has one gemm
      over all input channels, and after it a Mul of its N columns by a constant with the N scales of every block; the
      engine was not run. One block is built as a scale per channel, and blocks beside a float16 activation as one
      kernel.
    """
    plan = subject.plan
    for node, operands in _matrix_ops(subject.model.graph, plan) if plan is not None else ():
        quantized = [storage for _, storage in operands if isinstance(storage, QParams)]
        blocked = [storage for storage in quantized if _blocks(storage) > 1]
        if len(quantized) > 1 and blocked:
            message = (
                f"{say(node)} multiplies a quantized activation by {blocked[0].dtype} in {_blocks(blocked[0])} blocks, "
                "which the builder rejects or computes with wrong scales"
            )
            fix = "quantize the weight with one scale per output channel, or leave the activation in float"
            yield Finding("Q129", at_node(node), message, Severity.ERROR, fix=fix)


def _blocks(storage: QParams) -> int:
    """The number of blocks along the axis of a weight; 1 if it is not quantized in blocks with float scales."""
    if storage.encoding.granularity is not Granularity.BLOCK or storage.axis is None:
        return 1
    return int(storage.scale.shape[storage.axis])
