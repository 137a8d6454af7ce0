"""Write ``V P^T`` as ``(P V^T)^T``, so that the probabilities are always the left operand of the MatMul."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.layout import Step, insert_step, perm_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def probabilities_first(model: ir.Model) -> PassRecord:
    """Transpose V and the result instead of the probabilities: YOLO detectors have the channels before the pixels.

    The probabilities are the larger tensor, and both new Transposes can merge with reshapes and transposes around them.
    """
    changed: list[Site] = []
    for node in list(model.graph.all_nodes()):
        transpose = _transposed_probabilities(node)
        if transpose is None:
            continue
        left, mixed, probabilities = node.inputs[0], node.outputs[0], transpose.inputs[0]
        shape, result = edit.shape_of(left), edit.shape_of(mixed)
        if left is None or shape is None or result is None or edit.constant_of(left) is not None:
            continue
        changed.append(Site(origin_of(mixed).name, "V P^T rewritten as (P V^T)^T"))
        value = insert_step(node, left, _swap(len(shape)), replaces=[node])
        matmul = edit.insert(
            node,
            "MatMul",
            [probabilities, value],
            source=mixed,
            replaces=[node],
            shape=(*result[:-2], result[-1], result[-2]),
        )
        edit.replace_value(mixed, insert_step(node, matmul, _swap(len(result)), replaces=[node, transpose]))
        edit.remove_dead(edit.graph_of(node), [node])
    return PassRecord("probabilities_first", tuple(changed))


def _swap(rank: int) -> Step:
    return Step("Transpose", (*range(rank - 2), rank - 1, rank - 2))


def _transposed_probabilities(node: ir.Node) -> ir.Node | None:
    """The Transpose of Softmax probabilities that is the right operand of a MatMul."""
    right = node.inputs[1] if edit.is_op(node, "MatMul") else None
    transpose = None if right is None else right.producer()
    if transpose is None or not edit.is_op(transpose, "Transpose"):
        return None
    rank = len(edit.shape_of(right) or ())
    if rank < 2 or perm_of(transpose) != _swap(rank).shape_or_perm:
        return None
    value = transpose.inputs[0]
    while value is not None and edit.is_op(value.producer(), "Cast", "Dropout", "Identity"):
        value = above.inputs[0] if (above := value.producer()) is not None else None
    return transpose if value is not None and edit.is_op(value.producer(), "Softmax") else None
