"""Padded pooling without padding in the pooling operator."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir
import pytest

from dovetail.passes.padded_pool_to_conv import padded_pool_to_conv
from tests.equality import changed_by, model_from, ops


def pooled(op: str, attributes: str, shape: str = "2,3,7,8") -> ir.Model:
    """A pooling operator whose input has a second consumer."""
    nodes = f"m = Neg(x) y = {op}<{attributes}>(m) z = Abs(m)"
    return model_from(f"g (float[{shape}] x) => (float[a,b,c,d] y, float[{shape}] z) {{ {nodes} }}")


@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[2,2], strides=[2,2], pads=[1,1,0,0]",
        "kernel_shape=[3,2], strides=[3,1], pads=[1,0,2,1]",
        "kernel_shape=[3,3], pads=[1,1,1,1]",
        "kernel_shape=[2,3], pads=[1,2,1,2], dilations=[2,2]",
    ],
)
@pytest.mark.parametrize(("counted", "expected"), [(1, {"Conv"}), (0, {"Conv", "Mul"})])
def test_an_average_is_a_depthwise_convolution(attributes: str, counted: int, expected: set[str]) -> None:
    model = pooled("AveragePool", f"{attributes}, count_include_pad={counted}")
    after, record = changed_by(padded_pool_to_conv, model)
    assert set(ops(after)) - {"Neg", "Abs"} == expected
    assert [site.where for site in record.changed] == ["y"]


@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[2,2], strides=[2,2], pads=[1,1,1,1]",
        "kernel_shape=[3,2], strides=[2,2], pads=[2,0,2,1]",
    ],
)
def test_a_maximum_repeats_the_border(attributes: str) -> None:
    after, record = changed_by(padded_pool_to_conv, pooled("MaxPool", attributes), float("inf"))
    assert set(ops(after)) - {"Neg", "Abs"} == {"Pad", "MaxPool"}
    assert len(record.changed) == 1


@pytest.mark.parametrize(
    ("op", "attributes", "shape"),
    [
        ("AveragePool", "kernel_shape=[2,2], strides=[2,2]", "2,3,7,8"),
        ("AveragePool", 'kernel_shape=[3,3], auto_pad="SAME_UPPER"', "2,3,7,8"),
        ("AveragePool", "kernel_shape=[2,2], strides=[2,2], pads=[1,1,1,1], ceil_mode=1", "2,3,7,8"),
        ("MaxPool", "kernel_shape=[2,2], strides=[2,2], pads=[1,1,1,1], ceil_mode=1", "2,3,7,8"),
        ("MaxPool", "kernel_shape=[2,2], strides=[2,2]", "2,3,7,8"),
        ("MaxPool", "kernel_shape=[3,3], pads=[2,2,2,2], dilations=[2,2]", "2,3,7,8"),
    ],
)
def test_other_pooling_is_not_changed(op: str, attributes: str, shape: str) -> None:
    model = pooled(op, attributes, shape)
    after, record = changed_by(padded_pool_to_conv, model)
    assert ops(after) == ops(model)
    assert not record.changed


def test_only_what_the_condition_names_is_changed() -> None:
    model = pooled("AveragePool", "kernel_shape=[2,2], strides=[2,2], pads=[1,1,0,0]")
    after, _ = changed_by(partial(padded_pool_to_conv, applies=lambda node: False), model)
    assert ops(after) == ops(model)
