from __future__ import annotations

from functools import partial

import onnx_ir as ir
import pytest

from dovetail.model.edit import attribute
from dovetail.passes.resize_to_gather import resize_to_gather
from tests.equality import changed_by, model_from, ops


def resize(transform: str, rounding: str, scales: str, shape: str) -> ir.Model:
    text = f"""g (float[1,2,6,5] x) => (float[{shape}] y) <float[4] scales = {{{scales}}}>
        {{ y = Resize<mode="nearest", coordinate_transformation_mode="{transform}", nearest_mode="{rounding}">
           (x, , scales) }}"""
    return model_from(text)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize(
    "transform", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
)
@pytest.mark.parametrize(
    ("scales", "shape"),
    [("1,1,2,2", "1,2,12,10"), ("1,1,3,1", "1,2,18,5"), ("1,1,1.5,1.7", "1,2,9,8"), ("1,1,0.5,0.6", "1,2,3,3")],
)
def test_the_same_elements_are_selected(transform: str, rounding: str, scales: str, shape: str) -> None:
    after, record = changed_by(resize_to_gather, resize(transform, rounding, scales, shape), float("inf"))
    assert len(record.changed) == 1
    assert set(ops(after)) in ({"Gather"}, {"Gather", "Transpose"}, {"Resize"})


def test_a_whole_factor_is_a_resize_that_rounds_nothing() -> None:
    after, _ = changed_by(resize_to_gather, resize("half_pixel", "round_prefer_floor", "1,1,2,2", "1,2,12,10"))
    (node,) = after.graph
    assert attribute(node, "coordinate_transformation_mode", "") == "asymmetric"
    assert attribute(node, "nearest_mode", "") == "floor"


def test_a_shifted_factor_is_gathered() -> None:
    after, _ = changed_by(resize_to_gather, resize("half_pixel", "floor", "1,1,2,2", "1,2,12,10"))
    assert ops(after) == ["Transpose", "Gather", "Transpose", "Gather"]


def test_other_consumers_of_the_input_are_not_changed() -> None:
    text = """g (float[1,2,6,5] x) => (float[1,2,12,10] y, float[1,2,6,5] z) <int64[4] sizes = {1,2,12,10}>
        { a = Neg(x) y = Resize<nearest_mode="floor">(a, , , sizes) z = Relu(a) }"""
    after, record = changed_by(resize_to_gather, model_from(text))
    assert sorted(ops(after)) == ["Gather", "Gather", "Neg", "Relu", "Transpose", "Transpose"]
    assert len(record.changed) == 1


def test_only_what_the_condition_names_is_changed() -> None:
    model = resize("half_pixel", "floor", "1,1,2,2", "1,2,12,10")
    after, record = changed_by(partial(resize_to_gather, applies=lambda node: False), model)
    assert ops(after) == ["Resize"]
    assert not record.changed
    assert not record.declined


@pytest.mark.parametrize("transform", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize(
    ("scales", "shape"), [("1,1,2,1.5", "1,2,12,7"), ("1,1,0.5,0.4", "1,2,3,2"), ("1,1,0.3,0.3", "1,2,1,1")]
)
def test_linear_interpolation_is_written_out(transform: str, scales: str, shape: str) -> None:
    text = f"""g (float[1,2,6,5] x) => (float[{shape}] y) <float[4] scales = {{{scales}}}>
        {{ y = Resize<mode="linear", coordinate_transformation_mode="{transform}">(x, , scales) }}"""
    after, record = changed_by(resize_to_gather, model_from(text))
    assert len(record.changed) == 1
    assert set(ops(after)) <= {"Gather", "Transpose", "Sub", "Mul", "Add"}


@pytest.mark.parametrize("attributes", ['mode="cubic"', 'mode="linear", antialias=1'])
def test_other_interpolation_is_not_changed(attributes: str) -> None:
    text = f"""g (float[1,2,6,5] x) => (float[1,2,12,10] y) <float[4] scales = {{1,1,2,2}}>
        {{ y = Resize<{attributes}>(x, , scales) }}"""
    after, _ = changed_by(resize_to_gather, model_from(text))
    assert ops(after) == ["Resize"]


def test_unknown_sizes_are_declined() -> None:
    text = """g (float[1,2,6,5] x, float[4] s) => (float[1,2,12,10] y) { y = Resize(x, , s) }"""
    model = model_from(text)
    after = model.clone()
    record = resize_to_gather(after)
    assert ops(after) == ["Resize"]
    assert "unknown" in record.declined[0].what


def test_a_resize_to_no_elements_is_declined() -> None:
    model = model_from("g (float[1,2,6,4] x) => (float[1,2,3,0] y) <float[4] s = {1,1,0.5,0.2}> { y = Resize(x, , s) }")
    record = resize_to_gather(model)
    assert ops(model) == ["Resize"]
    assert len(record.declined) == 1
