"""Outputs after a TopK: the order of their rows can change with the last bit of a score."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model.edit import is_op, shape_of


def ranked_outputs(graph: ir.Graph) -> dict[str, int]:
    """Graph outputs whose rows are ordered by a TopK -> the axis of the rows.

    It is the first axis after the batch that is as long as the TopK's selection.
    """
    topk_lengths: dict[ir.Value, frozenset[int]] = {}
    for node in graph:
        lengths = frozenset[int]().union(*(topk_lengths.get(v, frozenset()) for v in node.inputs if v is not None))
        if is_op(node, "TopK"):
            shape = shape_of(node.outputs[0])
            lengths |= frozenset(shape[-1:] if shape is not None else ())
        for value in node.outputs:
            topk_lengths[value] = lengths
    row_axes = {}
    for output in graph.outputs:
        shape, lengths = shape_of(output) or (), topk_lengths.get(output, frozenset())
        axis = next((i for i, size in enumerate(shape) if i > 0 and size in lengths), None)
        if axis is not None:
            row_axes[output.name or ""] = axis
    return row_axes
