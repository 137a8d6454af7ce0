"""Qparams follow a constant that passes move: the same integers, in another layout."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.encoding import DType, Encoding, Granularity, QParams
from dovetail.numerics.affine import quantize
from dovetail.numerics.ranges import weight_params
from dovetail.op_support import W8
from dovetail.plan.moved_constants import of_moved_constant
from tests.equality import normal

BLOCKS = Encoding(DType.S4, True, Granularity.BLOCK, 4)
LPBQ = Encoding(DType.S4, True, Granularity.EXPANDED_BLOCK, 4)
WEIGHT = normal(8, 12)  # [in, out]


def given(encoding: Encoding, axis: int) -> QParams:
    """Qparams that are not those of the values: a third of the range is clipped."""
    return weight_params(WEIGHT * np.float32(0.7), encoding, axis)


@pytest.mark.parametrize(("encoding", "axis"), [(W8, 1), (BLOCKS, 0), (LPBQ, 0)], ids=["channel", "block", "lpbq"])
def test_a_transposed_weight_has_the_transposed_integers(encoding: Encoding, axis: int) -> None:
    params, moved = given(encoding, axis), np.ascontiguousarray(WEIGHT.T)
    found = of_moved_constant(WEIGHT, params, moved, weight_params(moved, encoding, 1 - axis))
    assert found is not None
    np.testing.assert_array_equal(quantize(moved, found), quantize(WEIGHT, params).T)


@pytest.mark.parametrize(("encoding", "axis"), [(W8, 1), (BLOCKS, 0), (LPBQ, 0)], ids=["channel", "block", "lpbq"])
def test_some_channels_and_a_factor_give_the_same_integers(encoding: Encoding, axis: int) -> None:
    params, part = given(encoding, axis), WEIGHT[:, 4:8] * np.float32(0.125)
    found = of_moved_constant(WEIGHT, params, part, weight_params(part, encoding, axis))
    assert found is not None
    np.testing.assert_array_equal(quantize(part, found), quantize(WEIGHT, params)[:, 4:8])
    changed = part.copy()
    changed[3, 2] += 1
    assert of_moved_constant(WEIGHT, params, changed, weight_params(changed, encoding, axis)) is None
    assert of_moved_constant(WEIGHT, params, -part, weight_params(part, encoding, axis)) is None


def test_a_reshaped_constant_keeps_the_scale_of_the_tensor() -> None:
    encoding = Encoding(DType.U16)
    params = QParams(encoding, np.float32(0.001), np.int32(30000))
    flat = WEIGHT.reshape(96)
    found = of_moved_constant(WEIGHT, params, flat, weight_params(flat, encoding, None))
    assert found is not None
    np.testing.assert_array_equal(quantize(flat, found), quantize(WEIGHT, params).reshape(96))
    symmetric = Encoding(DType.U16, symmetric=True)
    assert of_moved_constant(WEIGHT, params, flat, weight_params(flat, symmetric, None)) is None


def test_another_encoding_or_block_size_is_not_taken_over() -> None:
    assert of_moved_constant(WEIGHT, given(W8, 1), WEIGHT, weight_params(WEIGHT, BLOCKS, 0)) is None
    larger = Encoding(DType.S4, True, Granularity.EXPANDED_BLOCK, 8)
    assert of_moved_constant(WEIGHT, given(LPBQ, 0), WEIGHT, weight_params(WEIGHT, larger, 0)) is None
