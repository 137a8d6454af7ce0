from __future__ import annotations

import pytest

from dovetail.passes.cut_as_slices import cut_as_slices
from tests.equality import changed_by, model_from, ops


def test_a_split_becomes_one_slice_per_part() -> None:
    text = "g (float[2,6,3] x) => (float[2,2,3] a, float[2,2,3] b, float[2,2,3] c) { a, b, c = Split<axis=1>(x) }"
    text = text.replace("Split<axis=1>", "Split<axis=1, num_outputs=3>")
    after, record = changed_by(cut_as_slices, model_from(text))
    assert ops(after) == ["Slice"] * 3
    assert record.changed[0].what == "Split made 3 Slice"


@pytest.mark.parametrize(
    ("index", "shape", "expected"),
    [
        ("int64 i = {-1}", "2,3", ["Relu", "Slice", "Reshape", "Neg"]),
        ("int64[2] i = {1,2}", "2,2,3", ["Relu", "Slice", "Neg"]),
        ("int64[1,2] i = {1,2}", "2,1,2,3", ["Relu", "Slice", "Reshape", "Neg"]),
    ],
)
def test_indices_that_follow_each_other_are_a_slice(index: str, shape: str, expected: list[str]) -> None:
    text = f"g (float[2,6,3] x) => (float[{shape}] y, float[2,6,3] z) <{index}>"
    after, _ = changed_by(cut_as_slices, model_from(text + "{ z = Relu(x) h = Gather<axis=1>(z, i) y = Neg(h) }"))
    assert ops(after) == expected


@pytest.mark.parametrize("index", ["int64[2] i = {2,1}", "int64[2] i = {0,2}"])
def test_other_indices_are_declined(index: str) -> None:
    text = f"g (float[2,6,3] x) => (float[2,2,3] y) <{index}> {{ y = Gather<axis=1>(x, i) }}"
    after, record = changed_by(cut_as_slices, model_from(text))
    assert ops(after) == ["Gather"]
    assert record.declined[0].what == "its indices do not follow each other"
