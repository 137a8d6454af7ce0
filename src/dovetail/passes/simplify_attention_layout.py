"""Bring the reshapes and transposes around attention to one form: at most one Reshape, then at most one Transpose."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.attention import each_attention
from dovetail.model.layout import LAYOUT_OPS, Step, insert_step, shortest_steps, step_of
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def simplify_attention_layout(model: ir.Model) -> PassRecord:
    """Shorten the chains of reshapes and transposes before Q, K and V and after the MatMul with V.

    Heads are then split by `Reshape -> Transpose(0,2,1,3)`, K comes from one `Transpose(0,2,3,1)`, and heads are
    merged by `Transpose(0,2,1,3) -> Reshape`, whatever the exporter wrote.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for attention in each_attention(model.graph):
        for operand in (attention.query, attention.key, attention.value):
            chain = _chain_above(operand)
            if chain and _is_cast_of_layout(chain[0].inputs[0]):
                declined.append(Site(origin_of(operand).name, "there is a Cast between the reshapes and transposes"))
            _shorten(chain, changed)
        _shorten(_chain_below(attention.mix.outputs[0]), changed)
    return PassRecord("simplify_attention_layout", tuple(changed), tuple(declined))


def _is_cast_of_layout(value: ir.Value | None) -> bool:
    cast = None if value is None else value.producer()
    above = cast.inputs[0].producer() if cast is not None and edit.is_op(cast, "Cast") and cast.inputs[0] else None
    return above is not None and _is_layout(above)


def _chain_above(value: ir.Value) -> list[ir.Node]:
    """The reshapes and transposes that lead to a value, first to last."""
    chain: list[ir.Node] = []
    current: ir.Value | None = value
    while current is not None and (node := current.producer()) is not None and _is_layout(node):
        chain.insert(0, node)
        current = node.inputs[0]
    return chain


def _chain_below(value: ir.Value) -> list[ir.Node]:
    """The chain of reshapes and transposes after a value, each the only consumer of the one before."""
    chain: list[ir.Node] = []
    while (node := edit.sole_consumer(value)) is not None and _is_layout(node) and node.inputs[0] is value:
        chain.append(node)
        value = node.outputs[0]
    return chain


def _is_layout(node: ir.Node) -> bool:
    is_static = edit.shape_of(node.inputs[0]) is not None and edit.shape_of(node.outputs[0]) is not None
    return edit.is_op(node, *LAYOUT_OPS) and is_static


def _shorten(chain: list[ir.Node], changed: list[Site]) -> None:
    if not chain or (source := chain[0].inputs[0]) is None:
        return
    steps = shortest_steps(source, chain)
    if len(steps) == len(chain):
        return
    end = chain[-1].outputs[0]
    changed.append(Site(origin_of(end).name, f"{len(chain)} reshapes and transposes reduced to {len(steps)}"))
    edit.replace_value(end, _build(source, chain, steps))
    edit.remove_dead(edit.graph_of(chain[-1]), [chain[-1]])


def _build(source: ir.Value, chain: Sequence[ir.Node], steps: Sequence[Step]) -> ir.Value:
    """Insert the nodes for the steps; leading nodes of the chain that match are reused."""
    value, reusing = source, True
    for position, step in enumerate(steps):
        reusing = reusing and step_of(chain[position]) == step
        value = chain[position].outputs[0] if reusing else insert_step(chain[-1], value, step, replaces=chain)
    return value
