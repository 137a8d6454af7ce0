"""Sharing groups: a partition of the tensors that does not depend on the order of merges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.plan.groups import UnionFind

NAMES = [f"t{i}" for i in range(12)]
PAIRS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=20)


@given(PAIRS)
def test_sets_partition_the_names(pairs: list[tuple[str, str]]) -> None:
    groups = UnionFind(NAMES)
    for a, b in pairs:
        groups.union(a, b)
    sets = groups.sets()
    assert sorted(name for members in sets.values() for name in members) == sorted(NAMES)
    for a, b in pairs:
        assert groups.find(a) == groups.find(b)


@given(PAIRS, st.randoms())
def test_order_of_unions_does_not_matter(pairs: list[tuple[str, str]], random: object) -> None:
    in_order, in_random_order = UnionFind(NAMES), UnionFind(NAMES)
    shuffled = [pair[::-1] for pair in pairs]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for pair in pairs:
        in_order.union(*pair)
    for pair in shuffled:
        in_random_order.union(*pair)
    assert in_order.sets() == in_random_order.sets()


def test_representative_is_the_first_member() -> None:
    groups = UnionFind(["a", "b", "c"])
    groups.union("c", "b")
    groups.union("b", "a")
    assert groups.sets() == {"a": ("a", "b", "c")}
    assert "a" in groups
    assert "d" not in groups
