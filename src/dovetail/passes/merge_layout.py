"""Merge consecutive Reshapes and Transposes into one."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import is_op, shape_of
from dovetail.model.layout import insert_step, shortest_steps
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

_LAYOUT = ("Reshape", "Transpose")


def merge_layout(model: ir.Model) -> PassRecord:
    """Replace two consecutive reshapes or transposes, or three nodes (a Transpose between two Reshapes), by one.

    Only where one node, or none, is enough: earlier nodes stay if they have other consumers, and the graph never grows.
    """
    changed: list[Site] = []
    for node in model.graph:
        chain = _chain(node)
        for length in range(2, len(chain) + 1):
            last_nodes = chain[-length:]
            where, op_types = origin_of(node.outputs[0]).name, " and ".join(n.op_type for n in last_nodes)
            if _merge(last_nodes):
                changed.append(Site(where, f"{op_types} merged"))
                break
    return PassRecord("merge_layout", tuple(changed))


def _chain(node: ir.Node) -> list[ir.Node]:
    """The node and up to two reshapes or transposes before it, first to last."""
    chain: list[ir.Node] = []
    current: ir.Node | None = node
    while current is not None and is_op(current, *_LAYOUT) and len(chain) < 3:
        shapes = (shape_of(current.inputs[0]), shape_of(current.outputs[0]))
        if any(shape is None or 0 in shape for shape in shapes):
            break
        chain.insert(0, current)
        current = current.inputs[0].producer() if current.inputs[0] is not None else None
    return chain


def _merge(chain: list[ir.Node]) -> bool:
    source, last = chain[0].inputs[0], chain[-1]
    if source is None:
        return False
    steps = shortest_steps(source, chain)
    if len(steps) > 1:
        return False
    merged = insert_step(last, source, steps[0], replaces=chain) if steps else source
    edit.replace_value(last.outputs[0], merged)
    edit.remove_dead(edit.graph_of(last), [last])
    return True
