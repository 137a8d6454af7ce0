from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from dovetail.passes.pad_to_conv import pad_to_conv
from tests.equality import changed_by, model_from, ops


@pytest.mark.parametrize(
    ("pads", "shape"), [("0,0,0,0,0,0,2,1", "2,3,6,6"), ("0,0,1,0,0,2,0,3", "2,5,5,8"), ("0,1,2,0,0,0,0,3", "2,4,6,8")]
)
def test_the_convolution_pads_rows_columns_and_channels(pads: str, shape: str) -> None:
    text = f"g (float[2,3,4,5] x) => (float[{shape}] y) <int64[8] pads = {{{pads}}}> {{ y = Pad(x, pads) }}"
    after, record = changed_by(pad_to_conv, model_from(text), float("inf"))
    assert ops(after) == ["Conv"]
    assert [site.where for site in record.changed] == ["y"]


def test_another_value_than_zero_is_subtracted_and_added_again() -> None:
    text = """g (float[2,3,4,5] x) => (float[2,4,6,6] y, float[2,3,4,5] z)
        <int64[8] pads = {0,0,0,0,0,1,2,1}, float v = {0.5}>
        { a = Neg(x) y = Pad(a, pads, v) z = Relu(a) }"""
    after, record = changed_by(pad_to_conv, model_from(text))
    assert sorted(ops(after)) == ["Conv", "Neg", "Relu", "Sub"]
    assert [site.where for site in record.changed] == ["y"]


def test_other_consumers_of_the_input_are_not_changed() -> None:
    text = """g (float[1,3,4,5] x) => (float[1,3,4,6] y, float[1,3,4,5] z) <int64[8] pads = {0,0,0,0,0,0,0,1}>
        { a = Neg(x) y = Pad(a, pads) z = Relu(a) }"""
    after, record = changed_by(pad_to_conv, model_from(text))
    assert sorted(ops(after)) == ["Conv", "Neg", "Relu"]
    assert len(record.changed) == 1


@pytest.mark.parametrize(
    ("pad", "shape"),
    [
        ('Pad<mode="reflect">(x, pads)', "1,3,4,6"),
        ("Pad(x, removed)", "1,3,3,5"),
        ("Pad(x, batch)", "2,3,4,5"),
    ],
)
def test_other_pads_are_not_changed(pad: str, shape: str) -> None:
    constants = """<int64[8] pads = {0,0,0,0,0,0,0,1}, int64[8] removed = {0,0,-1,0,0,0,0,0},
        int64[8] batch = {0,0,0,0,1,0,0,0}>"""
    text = f"g (float[1,3,4,5] x) => (float[{shape}] y) {constants} {{ y = {pad} }}"
    after, record = changed_by(pad_to_conv, model_from(text))
    assert ops(after) == ["Pad"]
    assert not record.changed


def test_a_value_that_is_not_finite_is_not_changed() -> None:
    text = "g (float[1,3,4,5] x) => (float[1,3,4,6] y) <int64[8] pads = {0,0,0,0,0,0,0,1}> { y = Pad(x, pads, v) }"
    model = model_from(text, v=np.array(-np.inf, np.float32))
    assert [site.where for site in pad_to_conv(model).declined] == ["y"]
    assert ops(model) == ["Pad"]


def test_only_what_the_condition_names_is_changed() -> None:
    text = "g (float[1,3,4,5] x) => (float[1,3,4,6] y) <int64[8] pads = {0,0,0,0,0,0,0,1}> { y = Pad(x, pads) }"
    after, _ = changed_by(partial(pad_to_conv, applies=lambda node: False), model_from(text))
    assert ops(after) == ["Pad"]
