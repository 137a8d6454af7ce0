"""Selection rules: pure functions over measured figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
State = TypeVar("State")


def least_cost_per_gain(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """The indices of the items with a gain, least cost per gain first."""
    useful = [index for index, gain in enumerate(gains) if gain > 0]
    return sorted(useful, key=lambda index: (max(costs[index], 0.0) / gains[index], -gains[index]))


def accept_within(
    order: Sequence[int], is_allowed: Callable[[frozenset[int]], bool], chosen: frozenset[int] = frozenset()
) -> frozenset[int]:
    """``chosen`` plus as many of ``order`` as are allowed together; a set that is not allowed is tried in halves."""
    if not order:
        return chosen
    together = chosen.union(order)
    if is_allowed(together):
        return together
    if len(order) == 1:
        return chosen
    half = len(order) // 2
    return accept_within(order[half:], is_allowed, accept_within(order[:half], is_allowed, chosen))


def take_each_better(
    state: State,
    items: Sequence[Item],
    tried: Callable[[State, Sequence[Item]], State],
    is_better: Callable[[State, State], bool],
) -> list[tuple[Sequence[Item], State, State, bool]]:
    """Accept each item that is better on top of those accepted before it: (items, state without, state with, accepted).

    All items are tried together first: if they are not better, none of them is accepted, because no item is taken to
    make another one worse. Otherwise each half is tried in the same way, down to single items. If few of many items are
    better, that is few trials.
    """
    if not items:
        return []
    together = tried(state, items)
    if not is_better(state, together):
        return [(items, state, together, False)]
    if len(items) == 1:
        return [(items, state, together, True)]
    half = len(items) // 2
    rows = take_each_better(state, items[:half], tried, is_better)
    for _, _, with_items, accepted in rows:
        state = with_items if accepted else state
    return rows + take_each_better(state, items[half:], tried, is_better)


def shortest_prefix(order: Sequence[Item], is_enough: Callable[[Sequence[Item]], bool]) -> Sequence[Item] | None:
    """The shortest start of ``order`` that is enough, found by halving; None where none is.

    A longer start is taken to be enough where a shorter one is; if all of it is not, shorter ones are tried all the
    same, by doubling.
    """
    if not is_enough(order):
        return longer_prefix(order[:-1], is_enough, 0)
    return _by_halving(order, is_enough, 0, len(order))


def longer_prefix(
    order: Sequence[Item], is_enough: Callable[[Sequence[Item]], bool], too_short: int
) -> Sequence[Item] | None:
    """The shortest start of ``order`` that is enough, longer than ``too_short``; None where all of it is not.

    It is found by doubling what is added, then by halving: where longer starts cost more to try, and few are expected
    to be needed.
    """
    added = 1
    while too_short < len(order):
        length = min(too_short + added, len(order))
        if is_enough(order[:length]):
            return _by_halving(order, is_enough, too_short, length)
        too_short, added = length, 2 * added
    return None


def _by_halving(
    order: Sequence[Item], is_enough: Callable[[Sequence[Item]], bool], too_short: int, enough: int
) -> Sequence[Item]:
    while enough - too_short > 1:
        middle = (enough + too_short) // 2
        if is_enough(order[:middle]):
            enough = middle
        else:
            too_short = middle
    return order[:enough]
