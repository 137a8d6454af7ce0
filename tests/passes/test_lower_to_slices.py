from __future__ import annotations

import pytest

from dovetail.passes.lower_to_slices import lower_to_slices
from tests.equality import changed_by, model_from, ops


def test_split_becomes_one_slice_per_output() -> None:
    text = "g (float[2,6,3] x) => (float[2,2,3] a, float[2,2,3] b, float[2,2,3] c) { a, b, c = Split<axis=1>(x) }"
    text = text.replace("Split<axis=1>", "Split<axis=1, num_outputs=3>")
    after, record = changed_by(lower_to_slices, model_from(text))
    assert ops(after) == ["Slice"] * 3
    assert record.changed[0].what == "Split rewritten as plain Slices (3)"


@pytest.mark.parametrize(
    ("index", "shape", "expected"),
    [
        ("int64 i = {-1}", "2,3", ["Relu", "Slice", "Reshape", "Neg"]),
        ("int64[2] i = {1,2}", "2,2,3", ["Relu", "Slice", "Neg"]),
        ("int64[1,2] i = {1,2}", "2,1,2,3", ["Relu", "Slice", "Reshape", "Neg"]),
    ],
)
def test_gather_of_consecutive_indices_becomes_a_slice(index: str, shape: str, expected: list[str]) -> None:
    text = f"g (float[2,6,3] x) => (float[{shape}] y, float[2,6,3] z) <{index}>"
    after, _ = changed_by(lower_to_slices, model_from(text + "{ z = Relu(x) h = Gather<axis=1>(z, i) y = Neg(h) }"))
    assert ops(after) == expected


@pytest.mark.parametrize("index", ["int64[2] i = {2,1}", "int64[2] i = {0,2}"])
def test_other_indices_are_declined(index: str) -> None:
    text = f"g (float[2,6,3] x) => (float[2,2,3] y) <{index}> {{ y = Gather<axis=1>(x, i) }}"
    after, record = changed_by(lower_to_slices, model_from(text))
    assert ops(after) == ["Gather"]
    assert record.declined[0].what == "its indices are not consecutive"


WINDOW = "int64[3] s = {1,0,-1}, int64[3] e = {3,9,-9}, int64[3] a = {0,1,-1}, int64[3] t = {1,1,-1}"


def test_slice_of_several_axes_becomes_one_per_changed_axis() -> None:
    text = f"g (float[4,6,3] x) => (float[2,6,3] y, float[2,6,3] z, float[4,6,3] u) <{WINDOW}>"
    nodes = "{ u = Relu(x) v = Slice(u, s, e, a, t) y = Neg(v) z = Abs(v) }"
    after, record = changed_by(lower_to_slices, model_from(text + nodes))
    assert ops(after) == ["Relu", "Slice", "Slice", "Neg", "Abs"]
    assert record.changed[0].what == "Slice rewritten as plain Slices (2)"


def test_slice_without_axes_uses_the_first_ones() -> None:
    text = "g (float[4,6,3] x) => (float[2,5,3] y) <int64[2] s = {1,1}, int64[2] e = {3,6}> { y = Slice(x, s, e) }"
    after, _ = changed_by(lower_to_slices, model_from(text))
    assert ops(after) == ["Slice", "Slice"]


def test_plain_slice_stays_and_unknown_bounds_are_declined() -> None:
    text = "g (float[4,6] x, int64[2] s) => (float[2,6] y, float[n,m] z) <int64[1] i = {1}, int64[1] j = {3}, "
    text += "int64[2] e = {4,6}> { y = Slice(x, i, j) z = Slice(x, s, e) }"
    after, record = changed_by(lower_to_slices, model_from(text))
    assert ops(after) == ["Slice", "Slice"]
    assert [site.what for site in record.declined] == ["its shape or bounds are unknown"]


EVERY_SECOND = "int64[1] s = {1}, int64[1] e = {99}, int64[1] a = {1}, int64[1] t = {2}"


def test_every_second_element_becomes_a_slice_of_an_axis_of_size_2() -> None:
    text = (
        f"g (float[2,6,3] x) => (float[2,3,3] y) <{EVERY_SECOND}> {{ u = Relu(x) v = Slice(u, s, e, a, t) y = Neg(v) }}"
    )
    after, record = changed_by(lower_to_slices, model_from(text))
    assert ops(after) == ["Relu", "Reshape", "Slice", "Reshape", "Neg"]
    assert record.changed[0].what == "Slice rewritten as plain Slices (1)"


def test_every_second_row_and_column_become_two_slices() -> None:
    bounds = "int64[2] s = {0,1}, int64[2] e = {8,4}, int64[2] a = {1,2}, int64[2] t = {2,2}"
    text = f"g (float[1,8,4,3] x) => (float[1,4,2,3] y) <{bounds}> {{ y = Slice(x, s, e, a, t) }}"
    after, _ = changed_by(lower_to_slices, model_from(text))
    assert ops(after) == ["Reshape", "Slice", "Reshape", "Reshape", "Slice", "Reshape"]


@pytest.mark.parametrize("bounds", ["{1}, int64[1] e = {5}", "{0}, int64[1] e = {3}", "{-1}, int64[1] e = {-99}"])
def test_other_steps_are_declined(bounds: str) -> None:
    step = -1 if "-1" in bounds else 2
    text = f"g (float[5,3] x) => (float[n,3] y) <int64[1] s = {bounds}, int64[1] a = {{0}}, int64[1] t = {{{step}}}>"
    after, record = changed_by(lower_to_slices, model_from(text + "{ y = Slice(x, s, e, a, t) }"))
    assert ops(after) == ["Slice"]
    assert record.declined[0].what == "its step is negative or does not divide the axis"
