"""Rewrite MatMul with a transposed second operand as ``Einsum(..qd, ..kd -> ..qk)``: attention scores on HTP.

The QNN execution provider turns the Einsum into a MatMul that reads its second operand untransposed. Written as
Transpose and MatMul, ONNX Runtime moves the Transpose after the operand's conversion to 8 bit, where it is slow: a
ViT-tiny in W8A16 is estimated at 1053 us instead of 1231, in float16 at 1478 instead of 1585 (onnxruntime-qnn 2.7.0,
soc 52).
"""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, shape_of
from dovetail.model.layout import Step, insert_step, perm_of
from dovetail.model.origin import nodes_of
from dovetail.pass_record import PassRecord, Site

# By the rank of the operands: a and b are the batch axes, q the rows, k the columns, d the axis that is summed.
EQUATIONS = {3: "aqd,akd->aqk", 4: "abqd,abkd->abqk"}


def transposed_matmul_to_einsum(model: ir.Model) -> PassRecord:
    """Rewrite every MatMul whose second operand is a Transpose that makes the last axis the second last."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        transpose = node.inputs[1].producer() if is_op(node, "MatMul") and node.inputs[1] is not None else None
        if transpose is None or not is_op(transpose, "Transpose"):
            continue
        where = ", ".join(nodes_of(node)) or node.name or ""
        reason = _obstacle(node, transpose)
        if reason:
            declined.append(Site(where, reason))
            continue
        _rewrite(node, transpose)
        changed.append(Site(where, "MatMul and the Transpose of its second operand rewritten as Einsum"))
    return PassRecord("transposed_matmul_to_einsum", tuple(changed), tuple(declined))


def _obstacle(node: ir.Node, transpose: ir.Node) -> str:
    first, second = shape_of(node.inputs[0]), shape_of(node.inputs[1])
    if first is None or second is None:
        return "the shape of an operand is unknown"
    if len(first) != len(second) or len(first) not in EQUATIONS or first[:-2] != second[:-2]:
        return "the operands do not have the same batch axes, or their rank is not 3 or 4"
    if perm_of(transpose)[-2] != len(second) - 1:
        return "the summed axis is not the last axis before the Transpose"
    return ""


def _rewrite(node: ir.Node, transpose: ir.Node) -> None:
    source, output = transpose.inputs[0], node.outputs[0]
    if source is None:
        raise ValueError(f"{transpose.name!r} has no input")
    *stacked, inner, columns = perm_of(transpose)
    perm = (*stacked, columns, inner)
    if perm != tuple(range(len(perm))):
        source = insert_step(node, source, Step("Transpose", perm), replaces=[transpose])
    einsum = edit.insert(
        node,
        "Einsum",
        [node.inputs[0], source],
        attributes={"equation": EQUATIONS[len(perm)]},
        source=output,
        replaces=[node],
        shape=shape_of(output),
    )
    edit.replace_value(output, einsum)
    edit.remove_dead(edit.graph_of(einsum.producer() or node), [node])
