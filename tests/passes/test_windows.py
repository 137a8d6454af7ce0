"""Windows of an image (unfold by Gathers, fold by Col2Im): Reshape and Transpose if they tile it, else convolutions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.passes.merge_layout import merge_layout
from dovetail.passes.normalize import normalize
from dovetail.passes.unfold_to_conv import unfold_to_conv
from dovetail.passes.unfold_to_reshape import unfold_to_reshape
from tests.equality import assert_equal, changed_by, model_from, ops

# kernel, stride, dilation, padding, size of the image
OVERLAPPING = {
    "every pixel": (3, 1, 1, 1, 8),
    "strided": (3, 2, 1, 1, 9),
    "strided, with a remainder": (3, 2, 1, 1, 8),
    "dilated": (3, 1, 2, 2, 8),
    "gaps": (2, 3, 1, 0, 8),
}


def unfold(kernel: int, stride: int, dilation: int, size: int, *, consumers: str = "", outputs: str = "") -> ir.Model:
    """Unfold as exporters write it: Gathers of rows and of columns, then a Transpose to kernel axes first."""
    count = (size - dilation * (kernel - 1) - 1) // stride + 1
    grid = np.arange(kernel)[:, None] * dilation + np.arange(count) * stride
    text = f"""g (float[2,3,{size},{size}] x) => (float[2,{3 * kernel**2},{count**2}] y {outputs})
    {{ a = Relu(x)  r = Gather <axis = 2> (a, grid)  c = Gather <axis = 4> (r, grid)
       t = Transpose <perm = [0, 1, 2, 4, 3, 5]> (c)  y = Reshape(t, flat) {consumers} }}"""
    return model_from(text, grid=grid, flat=np.array([2, 3 * kernel**2, count**2]))


def fold(kernel: int, stride: int, dilation: int, padding: int, size: int) -> ir.Model:
    count = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    attributes = f"strides = [{stride},{stride}], dilations = [{dilation},{dilation}], pads = {[padding] * 4}"
    text = f"""g (float[2,{3 * kernel**2},{count**2}] x) => (float[2,3,{size},{size}] y, float[2,3,{size},{size}] z)
    <int64[2] image = {{{size},{size}}}, int64[2] block = {{{kernel},{kernel}}}>
    {{ a = Relu(x)  y = Col2Im <{attributes}> (a, image, block)  z = Neg(y) }}"""
    return model_from(text)


def test_tiling_windows_are_unfolded_by_layout() -> None:
    model = unfold(2, 2, 1, 8)
    after, record = changed_by(unfold_to_reshape, model)
    assert len(record.changed) == 1
    assert ops(after) == ["Relu", "Reshape", "Transpose", "Transpose", "Reshape"]
    merged, _ = changed_by(merge_layout, after)
    assert ops(merged) == ["Relu", "Reshape", "Transpose", "Reshape"]


def test_output_of_the_first_gather_may_have_other_consumers() -> None:
    model = unfold(2, 2, 1, 8, consumers="n = Neg(r)  m = Neg(c)", outputs=", float[2,3,2,4,8] n, float[2,3,2,4,2,4] m")
    after, record = changed_by(unfold_to_reshape, model)
    assert len(record.changed) == 2
    assert "Gather" not in ops(after)


def test_axis_divided_in_two_becomes_a_reshape() -> None:
    text = "g (float[2,6] x) => (float[2,2,3] y) { y = Gather <axis = 1> (x, grid) }"
    after, record = changed_by(unfold_to_reshape, model_from(text, grid=np.arange(6).reshape(2, 3)))
    assert len(record.changed) == 1
    assert "Gather" not in ops(after)


def test_tiling_windows_are_folded_by_layout() -> None:
    after, record = changed_by(unfold_to_reshape, fold(2, 2, 1, 0, 8))
    assert len(record.changed) == 1
    assert ops(after) == ["Relu", "Reshape", "Transpose", "Reshape", "Neg"]


@pytest.mark.parametrize("size", [5, 9])
def test_rows_and_columns_that_are_left_over_are_cut_off_and_padded_again(size: int) -> None:
    after, record = changed_by(unfold_to_reshape, unfold(2, 2, 1, size))
    assert len(record.changed) == 2
    assert set(ops(after)) == {"Relu", "Slice", "Reshape", "Transpose"}
    after, record = changed_by(unfold_to_reshape, fold(2, 2, 1, 0, size))
    assert len(record.changed) == 1
    assert ops(after) == ["Relu", "Reshape", "Transpose", "Reshape", "Pad", "Neg"]


@pytest.mark.parametrize("case", OVERLAPPING)
def test_other_windows_are_unfolded_by_a_convolution(case: str) -> None:
    kernel, stride, dilation, _, size = OVERLAPPING[case]
    model = unfold(kernel, stride, dilation, size)
    assert unfold_to_reshape(model.clone()).changed == ()
    after, record = changed_by(unfold_to_conv, model)
    assert len(record.changed) == 1
    merged, _ = changed_by(merge_layout, after)
    assert ops(merged) == ["Relu", "Conv", "Reshape"]


def test_other_consumers_of_the_gathers_are_not_changed() -> None:
    model = unfold(3, 1, 1, 8, consumers="n = Neg(r)  m = Neg(c)", outputs=", float[2,3,3,6,8] n, float[2,3,3,6,3,6] m")
    after, record = changed_by(unfold_to_conv, model)
    assert len(record.changed) == 1
    assert ops(after).count("Gather") == 1


@pytest.mark.parametrize("case", OVERLAPPING)
def test_other_windows_are_folded_by_a_transposed_convolution(case: str) -> None:
    model = fold(*OVERLAPPING[case])
    layout = unfold_to_reshape(model.clone())
    assert layout.changed == ()
    assert [site.what for site in layout.declined] == ["its windows overlap, leave gaps, or are unknown"]
    after, record = changed_by(unfold_to_conv, model)
    assert len(record.changed) == 1
    assert ops(after) == ["Relu", "Reshape", "ConvTranspose", "Neg"]


@pytest.mark.parametrize(
    "grid",
    [[[0, 1], [3, 2]], [[0, 2], [1, 4]], [[1, 2], [3, 4]], [[0, 1], [1, 2]]],
    ids=["order", "gap", "offset", "repeated"],
)
def test_other_indices_stay(grid: list[list[int]]) -> None:
    model = model_from("g (float[2,6] x) => (float[2,2,2] y) { y = Gather <axis = 1> (x, grid) }", grid=np.array(grid))
    for run_pass in (unfold_to_reshape, unfold_to_conv):
        after, record = changed_by(run_pass, model)
        assert record.changed == ()
        assert ops(after) == ["Gather"]


def test_canonical_form_of_unfold_has_no_gather() -> None:
    model = unfold(2, 2, 1, 8)
    after, _ = normalize(model)
    assert_equal(model, after)
    assert ops(after) == ["Relu", "Reshape", "Transpose", "Reshape"]
