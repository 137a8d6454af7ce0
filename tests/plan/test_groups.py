"""Sharing is solved once over the whole graph, and no anchor is chosen by position."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.plan.groups import UnionFind

NAMES = [f"t{i}" for i in range(12)]
PAIRS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=20)


@given(PAIRS)
def test_sets_partition_the_names(pairs: list[tuple[str, str]]) -> None:
    groups = UnionFind(NAMES)
    for one, other in pairs:
        groups.union(one, other)
    sets = groups.sets()
    assert sorted(name for members in sets.values() for name in members) == sorted(NAMES)
    for one, other in pairs:
        assert groups.find(one) == groups.find(other)


@given(PAIRS, st.randoms())
def test_order_of_unions_does_not_matter(pairs: list[tuple[str, str]], random: object) -> None:
    one, other = UnionFind(NAMES), UnionFind(NAMES)
    shuffled = [pair[::-1] for pair in pairs]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for pair in pairs:
        one.union(*pair)
    for pair in shuffled:
        other.union(*pair)
    assert one.sets() == other.sets()


def test_representative_is_the_first_member() -> None:
    groups = UnionFind(["a", "b", "c"])
    groups.union("c", "b")
    groups.union("b", "a")
    assert groups.sets() == {"a": ("a", "b", "c")}
    assert "a" in groups
    assert "d" not in groups
