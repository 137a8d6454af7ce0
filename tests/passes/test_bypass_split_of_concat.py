"""A Split that takes a Concat apart: its parts keep tensors of their own, and nothing else changes."""

from __future__ import annotations

import pytest

from dovetail.passes.bypass_split_of_concat import bypass_split_of_concat
from tests.equality import changed_by, model_from, ops

EXACT_DB = 250.0
INPUTS = "float[1,4,2,3] a, float[1,2,2,3] b, float[1,4,1,3] c, float[1,2,1,3] d"
CONSTANTS = "<int64[3] large = {1,6,6}, int64[3] small = {1,6,3}, int64[2] sizes = {4,2}, int64[2] other = {2,4}>"
LEVEL = "p = Concat<axis=1>(a, b) r = Reshape(p, large)"
LEVELS = f"{LEVEL} q = Concat<axis=1>(c, d) s = Reshape(q, small) l = Concat<axis=2>(r, s)"


def head(body: str, outputs: str = "float[1,4,M] boxes, float[1,2,M] scores", more: str = "") -> str:
    return f"g ({INPUTS}) => ({outputs}{more}) {CONSTANTS} {{ {body} }}"


@pytest.mark.parametrize(
    ("body", "remaining"),
    [
        (f"{LEVELS} x, z = Split<axis=1>(l, sizes)", ["Concat", "Concat", *["Reshape"] * 4]),
        (f"{LEVELS} x, z = Split<axis=-2>(l, sizes)", ["Concat", "Concat", *["Reshape"] * 4]),
        (f"{LEVEL} x, z = Split<axis=1>(r, sizes)", ["Reshape", "Reshape"]),
    ],
    ids=["two levels", "negative axis", "one level"],
)
def test_parts_are_flattened_and_concatenated_separately(body: str, remaining: list[str]) -> None:
    model = model_from(head(f"{body} boxes = Softmax<axis=1>(x) scores = Sigmoid(z)"))
    after, record = changed_by(bypass_split_of_concat, model, EXACT_DB)
    assert sorted(ops(after)) == sorted([*remaining, "Softmax", "Sigmoid"])
    assert [site.where for site in record.changed] == ["x"]


def test_a_split_behind_its_concat_is_removed() -> None:
    body = "p = Concat<axis=1>(a, b) s, t = Split<axis=1>(p, sizes) x = Neg(s) y = Abs(t)"
    text = head(body, "float[1,4,2,3] x, float[1,2,2,3] y")
    after, _ = changed_by(bypass_split_of_concat, model_from(text), EXACT_DB)
    assert ops(after) == ["Neg", "Abs"]


@pytest.mark.parametrize(
    ("body", "shapes"),
    [
        (f"{LEVELS} boxes, scores = Split<axis=1>(l, other)", "float[1,2,9] boxes, float[1,4,9] scores"),
        (f"{LEVELS} n = Neg(l) boxes, scores = Split<axis=1>(n, sizes)", "float[1,4,9] boxes, float[1,2,9] scores"),
    ],
    ids=["other sizes", "an operator between"],
)
def test_other_splits_stay(body: str, shapes: str) -> None:
    after, record = changed_by(bypass_split_of_concat, model_from(head(body, shapes)), EXACT_DB)
    assert "Split" in ops(after)
    assert not record.changed


def test_a_reshape_that_changes_the_axis_stays() -> None:
    text = """g (float[1,2,6,2] a, float[1,1,6,2] b) => (float[1,4,6] x, float[1,2,6] y)
        <int64[3] flat = {1,6,6}, int64[2] sizes = {4,2}>
        { p = Concat<axis=1>(a, b) r = Reshape(p, flat) x, y = Split<axis=1>(r, sizes) }"""
    after, record = changed_by(bypass_split_of_concat, model_from(text), EXACT_DB)
    assert ops(after) == ["Concat", "Reshape", "Split"]
    assert not record.changed


@pytest.mark.parametrize("consumed", ["l", "q"])
def test_a_tensor_with_a_second_consumer_stays_whole(consumed: str) -> None:
    text = head(f"{LEVELS} boxes, scores = Split<axis=1>(l, sizes) more = Neg({consumed})", more=", float more")
    after, record = changed_by(bypass_split_of_concat, model_from(text), EXACT_DB)
    assert ops(after).count("Concat") == 3
    assert not record.changed
