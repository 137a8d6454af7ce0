"""How to choose: pure functions over what a workbench measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
State = TypeVar("State")


def least_cost_per_gain(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """The items that gain anything, by number, least cost per gain first."""
    useful = [number for number, gain in enumerate(gains) if gain > 0]
    return sorted(useful, key=lambda number: (max(costs[number], 0.0) / gains[number], -gains[number]))


def accept_within(
    order: Sequence[int], is_allowed: Callable[[frozenset[int]], bool], chosen: frozenset[int] = frozenset()
) -> frozenset[int]:
    """Those chosen, and as many more as are allowed together; what is not is split in halves and tried again."""
    if not order:
        return chosen
    together = chosen.union(order)
    if is_allowed(together):
        return together
    if len(order) == 1:
        return chosen
    half = len(order) // 2
    return accept_within(order[half:], is_allowed, accept_within(order[:half], is_allowed, chosen))


def take_while_better(
    state: State,
    items: Sequence[Item],
    tried: Callable[[State, Item], State],
    is_better: Callable[[State, State], bool],
) -> list[tuple[Item, State, State, bool]]:
    """Each item in turn on top of those taken before: (item, without it, with it, whether it was taken)."""
    rows: list[tuple[Item, State, State, bool]] = []
    for item in items:
        other = tried(state, item)
        taken = is_better(state, other)
        rows.append((item, state, other, taken))
        state = other if taken else state
    return rows
