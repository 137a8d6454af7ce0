"""Transposes of rank 6 and more are rewritten in rank 5 or less."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.model.edit import shape_of
from dovetail.passes.merge_layout import merge_layout
from dovetail.passes.merge_transpose_axes import MAX_RANK, merge_transpose_axes, transpose_steps
from tests.equality import changed_by, model_from, ops

EXACT_DB = 250.0
# [batch, rows, columns, channels] split into windows of 2 x 2, as in Swin.
WINDOWS = """g (float[BATCH,4,6,5] x) => (float[COUNT,4,5] y)
    <int64[6] cut = {BATCH,2,2,3,2,5}, int64[3] rows = {-1,4,5}>
    { a = Neg(x) c = Reshape(a, cut) t = Transpose<perm=[0,1,3,2,4,5]>(c) r = Reshape(t, rows) y = Abs(r) }"""


def _transposes(model: ir.Model) -> list[int]:
    return [len(shape_of(node.outputs[0]) or ()) for node in model.graph if node.op_type == "Transpose"]


@pytest.mark.parametrize("batch", [1, 3])
def test_windows_are_split_in_rank_4(batch: int) -> None:
    model = model_from(WINDOWS.replace("BATCH", str(batch)).replace("COUNT", str(6 * batch)))
    after, record = changed_by(merge_transpose_axes, model, EXACT_DB)
    assert _transposes(after) == [4]
    assert [(site.where, site.what) for site in record.changed] == [("t", "rank 6 reduced to 4")]
    after, _ = changed_by(merge_layout, after, EXACT_DB)
    assert ops(after) == ["Neg", "Reshape", "Transpose", "Reshape", "Abs"]


def test_second_consumer_still_gets_rank_6() -> None:
    text = """g (float[2,2,3,2,3,2] x) => (float[2,3,2,2,3,2] y, float[6,2,6,2] z)
        <int64[4] flat = {6,2,6,2}> { t = Transpose<perm=[0,2,1,3,4,5]>(x) y = Neg(t) z = Reshape(t, flat) }"""
    after, _ = changed_by(merge_transpose_axes, model_from(text), EXACT_DB)
    assert sorted(ops(after)) == ["Neg", "Reshape", "Reshape", "Reshape", "Transpose"]
    assert _transposes(after) == [4]


def test_permutation_of_all_axes_takes_two_steps() -> None:
    text = "g (float[2,3,2,3,2,3] x) => (float[A,B,C,D,E,F] y) { y = Transpose<perm=[0,2,4,3,5,1]>(x) }"
    after, record = changed_by(merge_transpose_axes, model_from(text), EXACT_DB)
    assert len(_transposes(after)) == 2
    assert max(_transposes(after)) <= MAX_RANK
    assert record.changed[0].where == "y"


def test_moving_axes_of_size_1_is_a_reshape() -> None:
    text = "g (float[1,2,3,1,2,3] x) => (float[A,B,C,D,E,F] y) { y = Transpose<perm=[3,1,2,4,0,5]>(x) }"
    after, _ = changed_by(merge_transpose_axes, model_from(text), EXACT_DB)
    assert ops(after) == ["Reshape"]


def test_rank_5_and_unknown_shapes_are_not_changed() -> None:
    five = "g (float[2,3,2,3,2] x) => (float[A,B,C,D,E] y) { y = Transpose<perm=[0,2,1,3,4]>(x) }"
    _, record = changed_by(merge_transpose_axes, model_from(five), EXACT_DB)
    assert not record.changed
    assert not record.declined
    unknown = model_from("g (float[N,3,2,3,2,2] x) => (float[A,B,C,D,E,F] y) { y = Transpose<perm=[0,2,1,3,4,5]>(x) }")
    record = merge_transpose_axes(unknown)
    assert not record.changed
    assert record.declined[0].what == "the shape is unknown, or the tensor is empty"


@given(st.permutations(range(8)), st.lists(st.integers(1, 3), min_size=8, max_size=8))
def test_steps_compute_the_permutation(perm: list[int], shape: list[int]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    result = array
    for step in transpose_steps(tuple(shape), tuple(perm)):
        assert step.op_type == "Reshape" or len(step.shape_or_perm) <= MAX_RANK
        result = (
            result.reshape(step.shape_or_perm) if step.op_type == "Reshape" else result.transpose(step.shape_or_perm)
        )
    np.testing.assert_array_equal(result, array.transpose(perm))
