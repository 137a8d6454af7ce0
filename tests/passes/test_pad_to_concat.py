from __future__ import annotations

import pytest

from dovetail.passes.pad_to_concat import pad_to_concat
from tests.equality import changed_by, model_from, ops


@pytest.mark.parametrize(
    ("pads", "shape", "expected"),
    [
        ("0,0,1,0,0,0,2,0", "2,3,7,5", ["Concat"]),
        ("0,0,1,3,0,0,2,1", "2,3,7,9", ["Concat", "Concat"]),
        ("1,2,0,0,0,0,0,1", "3,5,4,6", ["Concat", "Concat", "Concat"]),
        ("0,0,-1,0,0,0,2,0", "2,3,5,5", ["Slice", "Concat"]),
        ("0,0,-1,-2,0,0,0,-1", "2,3,3,2", ["Slice"]),
    ],
)
def test_a_pad_becomes_concats(pads: str, shape: str, expected: list[str]) -> None:
    text = f"g (float[2,3,4,5] x) => (float[{shape}] y) <int64[8] pads = {{{pads}}}> {{ y = Pad(x, pads) }}"
    after, record = changed_by(pad_to_concat, model_from(text))
    assert ops(after) == expected
    assert [site.where for site in record.changed] == ["y"]


def test_the_value_and_the_axes_are_those_of_the_pad() -> None:
    text = """g (float[2,3,4] x) => (float[2,4,6] y) <int64[4] pads = {1,2,0,0}, float v = {-1.5}, int64[2] axes = {1,-1}>
        { y = Pad(x, pads, v, axes) }"""
    after, _ = changed_by(pad_to_concat, model_from(text))
    assert ops(after) == ["Concat", "Concat"]


def test_other_consumers_of_the_input_are_not_changed() -> None:
    text = """g (float[2,3] x) => (float[2,5] y, float[2,3] z) <int64[4] pads = {0,1,0,1}>
        { a = Neg(x) y = Pad(a, pads) z = Relu(a) }"""
    after, record = changed_by(pad_to_concat, model_from(text))
    assert sorted(ops(after)) == ["Concat", "Neg", "Relu"]
    assert len(record.changed) == 1


@pytest.mark.parametrize(
    "text",
    [
        'g (float[2,3] x) => (float[2,5] y) <int64[4] pads = {0,1,0,1}> { y = Pad<mode="reflect">(x, pads) }',
        "g (int64[2,3] x) => (int64[2,5] y) <int64[4] pads = {0,1,0,1}> { y = Pad(x, pads) }",
        "g (float[2,3] x, float v) => (float[2,5] y) <int64[4] pads = {0,1,0,1}> { y = Pad(x, pads, v) }",
    ],
    ids=["reflect", "integers", "unknown value"],
)
def test_other_pads_are_not_changed(text: str) -> None:
    after, record = changed_by(pad_to_concat, model_from(text))
    assert ops(after) == ["Pad"]
    assert not record.changed
