"""Inline the branch that an If with a constant condition selects."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


def inline_branches(model: ir.Model) -> PassRecord:
    """Replace every If with a constant condition by the nodes of its branch; other control flow is declined."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not edit.is_op(node, *CONTROL_FLOW):
            continue
        where = origin_of(node.outputs[0]).name
        condition = edit.scalar_of(node.inputs[0]) if node.op_type == "If" else None
        if condition is None:
            declined.append(Site(where, f"{node.op_type} {node.name!r} depends on the inputs"))
            continue
        _inline(model.graph, node, node.attributes["then_branch" if condition else "else_branch"].as_graph())
        changed.append(Site(where, f"{'then' if condition else 'else'} branch inlined"))
    return PassRecord("inline_branches", tuple(changed), tuple(declined))


def _inline(graph: ir.Graph, node: ir.Node, branch: ir.Graph) -> None:
    outputs, nodes, constants = list(branch.outputs), list(branch), list(branch.initializers.values())
    branch.outputs.clear()
    branch.initializers.clear()
    branch.remove(nodes)
    # ONNX requires names in a branch to differ from those around the If, but a branch inlined before may have them.
    taken = {value.name for outer in graph for value in outer.outputs} | set(graph.initializers)
    for value in constants:
        if value.const_value is not None:
            # a copy, which can be renamed
            value.const_value = ir.Tensor(value.const_value.numpy(), value.const_value.dtype)
        value.name = edit.free_name(graph, str(value.name)) if value.name in taken else value.name
        graph.register_initializer(value)
    taken_nodes = {outer.name for outer in graph}
    for inner in nodes:
        inner.name = edit.free_name(graph, str(inner.name)) if inner.name in taken_nodes else inner.name
        for value in inner.outputs:
            value.name = edit.free_name(graph, str(value.name)) if value.name in taken else value.name
        graph.insert_before(node, inner)
    for old, new in zip(node.outputs, outputs, strict=True):
        edit.replace_value(old, new)
    edit.remove_dead(graph, [node])
