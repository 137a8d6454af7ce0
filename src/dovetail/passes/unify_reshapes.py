"""Write every change of shape as a Reshape to explicit sizes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

_RESHAPING = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def unify_reshapes(model: ir.Model) -> PassRecord:
    """Rewrite Squeeze, Unsqueeze, Flatten, and Reshape with 0, -1 or a computed shape as Reshape to explicit sizes.

    Reshape can express all the others; which of them an exporter writes is arbitrary. Each gets its own shape constant,
    so that changing one does not change another.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in model.graph:
        if not edit.is_op(node, *_RESHAPING):
            continue
        output = node.outputs[0]
        shape = shape_of(output)
        where = origin_of(output).name
        if shape is None or 0 in shape:
            declined.append(Site(where, f"the output shape of the {node.op_type} is unknown or empty"))
        elif not _is_explicit(node, shape):
            _rewrite(model.graph, node, shape)
            changed.append(Site(where, f"{node.op_type} rewritten as Reshape to {list(shape)}"))
    return PassRecord("unify_reshapes", tuple(changed), tuple(declined))


def _is_explicit(node: ir.Node, shape: tuple[int, ...]) -> bool:
    if node.op_type != "Reshape" or "allowzero" in node.attributes:
        return False
    sizes = edit.constant_of(node.inputs[1])
    return sizes is not None and tuple(sizes) == shape and len(node.inputs[1].uses()) == 1  # type: ignore[union-attr]


def _rewrite(graph: ir.Graph, node: ir.Node, shape: tuple[int, ...]) -> None:
    output = node.outputs[0]
    sizes = np.array(shape, dtype=np.int64)
    constant = edit.add_initializer(graph, sizes, name=f"{output.name}/shape", source=output)
    new = edit.insert(node, "Reshape", [node.inputs[0], constant], source=output, replaces=[node], shape=shape)
    edit.replace_value(output, new)
    edit.remove_dead(graph, [node])
