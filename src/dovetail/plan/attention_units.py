"""The operators of one attention block, which targets fuse, so that they have one precision."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.model.attention import match_attention
from dovetail.model.edit import is_op
from dovetail.plan.constraints import Unit


def attention_units(units: Iterable[Unit]) -> dict[str, frozenset[str]]:
    """Operator in an attention block -> the operators of that block, the MatMuls and the Softmax; by name."""
    names = {unit.nodes[0]: unit.name for unit in units}
    blocks: dict[str, frozenset[str]] = {}
    for node in names:
        matched = match_attention(node) if is_op(node, "Softmax") else None
        if matched is not None:
            block = frozenset(names[each] for each in (matched.scores, node, matched.mix) if each in names)
            blocks |= dict.fromkeys(block, block)
    return blocks
