"""Resizes of any interpolation as MatMuls along rows and columns."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir
import pytest

from dovetail.passes.resize_to_matmul import resize_to_matmul
from tests.equality import changed_by, model_from, ops

# The weights are those of ONNX Runtime, which rounds them to float32 otherwise than MatMul adds.
FLOOR_DB = 90.0


def resized(attributes: str, scales: str, inputs: str = "a, , s") -> ir.Model:
    """A Resize whose input has a second consumer."""
    text = f"""g (float[1,2,7,6] x) => (float[a,b,c,d] y, float[1,2,7,6] z)
        <float[4] s = {{{scales}}}, int64[4] sizes = {{1,2,5,9}}>
        {{ a = Neg(x) y = Resize<{attributes}>({inputs}) z = Abs(a) }}"""
    return model_from(text)


@pytest.mark.parametrize("scales", ["1,1,1.3,1.7", "1,1,2,2", "1,1,0.6,0.4", "1,1,1,2"])
@pytest.mark.parametrize(
    "attributes",
    [
        'mode="cubic"',
        'mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1',
        'mode="cubic", coordinate_transformation_mode="asymmetric"',
        'mode="cubic", antialias=1',
        'mode="linear", antialias=1',
        'mode="linear", coordinate_transformation_mode="align_corners"',
    ],
)
def test_rows_and_columns_are_weighted_alike(attributes: str, scales: str) -> None:
    after, record = changed_by(resize_to_matmul, resized(attributes, scales), FLOOR_DB)
    assert [site.where for site in record.changed] == ["y"]
    assert set(ops(after)) <= {"Neg", "Abs", "MatMul", "Transpose"}


def test_sizes_in_place_of_scales() -> None:
    after, _ = changed_by(resize_to_matmul, resized('mode="cubic"', "1,1,1,1", "a, , , sizes"), FLOOR_DB)
    assert "Resize" not in ops(after)


def test_one_axis_is_one_matmul() -> None:
    after, _ = changed_by(resize_to_matmul, resized('mode="cubic"', "1,1,1,1.5"), FLOOR_DB)
    assert sorted(ops(after)) == ["Abs", "MatMul", "Neg"]


def test_what_is_not_an_image_or_not_named_by_the_condition_is_not_changed() -> None:
    tokens = model_from("g (float[1,2,8] x) => (float[1,4,8] y) <float[3] s = {1,2,1}> { y = Resize(x, , s) }")
    after, record = changed_by(resize_to_matmul, tokens)
    assert (ops(after), len(record.declined)) == (["Resize"], 1)
    model = resized('mode="cubic"', "1,1,1.3,1.7")
    after, record = changed_by(partial(resize_to_matmul, applies=lambda node: False), model)
    assert ops(after) == ops(model)
