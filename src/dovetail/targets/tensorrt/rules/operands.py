"""Q1 on TensorRT: operands of one MatMul, Gemm or Conv in different types."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.attention import find_attention
from dovetail.model.edit import constant_of, is_op
from dovetail.model.place import at_node
from dovetail.plan.validate import storage_on_edge
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule

# What the builder computes in float8 and in int8. It reads uint8 as int8, which Q121 reports, and casts int4 to int8.
_KERNELS = ({"float8e4m3fn"}, {"int8", "uint8", "int4"})


def _kernel(dtype: str) -> int | None:
    """Which of the kernels a type belongs to; None for types without one, which Q126 reports."""
    return next((number for number, dtypes in enumerate(_KERNELS) if dtype in dtypes), None)


@rule("Q125")
def operands_of_different_types(subject: CheckInput) -> Iterator[Finding]:
    """The two operands of a MatMul, Gemm or Conv are quantized to different types, or only the activation is.

    ## What it finds
    In QDQ models: MatMul, Gemm and Conv with a float8 activation and an int8 or int4 weight, or the reverse, which is
    an error; and those with a quantized activation beside an operand in float, which is a warning. A quantized weight
    beside a float activation is not reported, nor is an attention block, for which Q421 says more, nor uint8 beside
    int8 (Q121), nor int4 beside int8, which the builder casts to int8.

    ## Why it matters
    The kernels have one type for both operands. The builder rejects two 8-bit types, after the parser has accepted
    them. Beside a float weight it silently multiplies in float: the Q/DQ pair costs accuracy and time, and gains
    nothing.

    ## How to fix it
    Quantize both operands to the same type: float8 or int8. `dovetail repair` does this, with calibration data where a
    scale is missing. Or remove the Q/DQ pair of the activation.

    ## Seen on
    - tensorrt: tensorrt-rtx 1.7.1.116, sm89, built: float8 x int8 and float8 x int4 are rejected ("Input and filter
      have to be the same type"); int8 x int4 is built as Int8 x Int8; with an int8 activation and a float weight the
      layer list has a fused kernel that reads a Float weight.
    """
    plan = subject.plan
    if plan is None:
        return
    in_attention = {node for block in find_attention(subject.model.graph) for node, _ in block.operands.values()}
    for node in subject.model.graph:
        if not is_op(node, "Conv", "Gemm", "MatMul") or node in in_attention:
            continue
        values = [value for value in node.inputs[:2] if value is not None]
        stored = [storage_on_edge(plan, Edge(node.name or "", i), str(value.name)) for i, value in enumerate(values)]
        dtypes = [str(storage.dtype) for storage in stored]
        quantized = [isinstance(storage, QParams) for storage in stored]
        beside_float = any(q and constant_of(v) is None for q, v in zip(quantized, values, strict=True))
        kernels = {_kernel(dtype) for dtype in dtypes}
        if all(quantized) and None not in kernels and len(kernels) > 1:
            severity, effect = Severity.ERROR, "which the builder rejects"
        elif not all(quantized) and beside_float:
            severity, effect = Severity.WARNING, "so that it runs in float"
        else:
            continue
        message = f"{node.op_type} {str(at_node(node))!r} multiplies {' by '.join(dtypes)}, {effect}"
        yield Finding("Q125", at_node(node), message, severity, fix="quantize both operands to the same 8-bit type")
