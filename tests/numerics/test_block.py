"""Groups of elements that share a scale, against element-by-element indexing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.encoding import DType, Encoding, Granularity, QParams
from dovetail.errors import InputError
from dovetail.numerics.block import from_groups, scale_shape, spread, to_groups

cases = st.integers(1, 4).flatmap(
    lambda rank: st.tuples(
        st.tuples(*[st.integers(1, 6)] * rank),
        st.integers(-rank, rank - 1),
        st.sampled_from([(Granularity.AXIS, 0), *((Granularity.BLOCK, size) for size in (1, 2, 3, 4, 7))]),
    )
)


@settings(deadline=None)
@given(cases)
def test_every_element_gets_the_scale_of_its_own_group(case) -> None:
    shape, axis, (granularity, size) = case
    encoding = Encoding(DType.S8, granularity=granularity, block_size=size)
    shape_of_scale = scale_shape(shape, encoding, axis)
    scale = np.arange(1, np.prod(shape_of_scale) + 1, dtype=np.float32).reshape(shape_of_scale)
    view, broad, zero = spread(shape, QParams(encoding, scale, np.zeros(shape_of_scale, np.int32), axis))
    element_scales = np.broadcast_to(broad, view).reshape(shape)
    assert np.broadcast_shapes(view, zero.shape) == view
    for index in np.ndindex(*shape):
        at = list(index)
        at[axis] //= max(size, 1)
        assert element_scales[index] == (scale[at[axis]] if granularity is Granularity.AXIS else scale[tuple(at)])


@settings(deadline=None)
@given(cases)
def test_groups_have_one_row_per_scale_in_the_order_of_the_scales(case) -> None:
    shape, axis, (granularity, size) = case
    encoding = Encoding(DType.S8, granularity=granularity, block_size=size)
    shape_of_scale = scale_shape(shape, encoding, axis)
    labels = np.arange(1, np.prod(shape_of_scale) + 1, dtype=np.float32).reshape(shape_of_scale)
    view, broad, _ = spread(shape, QParams(encoding, labels, np.zeros(shape_of_scale, np.int32), axis))
    tensor = np.array(np.broadcast_to(broad, view).reshape(shape))  # every element is the label of its scale
    groups = to_groups(tensor, encoding, axis)
    np.testing.assert_array_equal(from_groups(groups.max(axis=1), shape, encoding, axis), labels)
    filled = groups != 0
    assert filled.sum() == tensor.size
    np.testing.assert_array_equal(groups[filled], np.broadcast_to(groups.max(axis=1)[:, None], groups.shape)[filled])


def test_a_whole_tensor_is_one_group() -> None:
    tensor = np.arange(6.0).reshape(2, 3)
    assert to_groups(tensor, Encoding(DType.S8), None).shape == (1, 6)
    assert from_groups(np.asarray([5.0]), (2, 3), Encoding(DType.S8), None).shape == ()


@pytest.mark.parametrize("axis", [None, 2, -3])
def test_an_axis_out_of_range_is_refused(axis: int | None) -> None:
    with pytest.raises(InputError, match=f"axis {axis} is out of range for a tensor of rank 2"):
        scale_shape((2, 3), Encoding(DType.S8, granularity=Granularity.AXIS), axis)
