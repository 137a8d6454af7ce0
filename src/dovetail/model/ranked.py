"""Outputs behind a TopK: their rows come in an order that flips with the last bit of a score."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model.edit import is_op, shape_of


def ranked_outputs(graph: ir.Graph) -> dict[str, int]:
    """Graph outputs whose rows a TopK has put in order -> the axis of the rows.

    The axis is the first one, past the batch, that is as long as the TopK's selection.
    """
    behind: dict[ir.Value, frozenset[int]] = {}
    for node in graph:
        lengths = frozenset[int]().union(*(behind.get(v, frozenset()) for v in node.inputs if v is not None))
        if is_op(node, "TopK"):
            shape = shape_of(node.outputs[0])
            lengths |= frozenset(shape[-1:] if shape is not None else ())
        for value in node.outputs:
            behind[value] = lengths
    found = {}
    for output in graph.outputs:
        shape, lengths = shape_of(output) or (), behind.get(output, frozenset())
        axis = next((i for i, size in enumerate(shape) if i > 0 and size in lengths), None)
        if axis is not None:
            found[output.name or ""] = axis
    return found
