from __future__ import annotations

import pytest

from dovetail.model.edit import attribute
from dovetail.passes.fold_pad import fold_pad
from tests.equality import changed_by, model_from, normal, ops

PADS = "<int64[8] pads = {0,0,1,2,0,0,0,1}>"


def padded(consumer: str, shape: str, pads: str = PADS, producer: str = "a = Neg(x)", pad: str = "Pad(a, pads)") -> str:
    return f"g (float[2,4,9,8] x) => (float[{shape}] y) {pads} {{ {producer} p = {pad} y = {consumer} }}"


@pytest.mark.parametrize(
    ("consumer", "shape", "expected"),
    [
        ("Conv(p, w)", "2,6,8,9", [1, 2, 0, 1]),
        ("Conv<pads=[1,1,1,1]>(p, w)", "2,6,10,11", [2, 3, 1, 2]),
        ('Conv<strides=[2,2], auto_pad="VALID">(p, w)', "2,6,4,5", [1, 2, 0, 1]),
        ("AveragePool<kernel_shape=[3,3]>(p)", "2,4,8,9", [1, 2, 0, 1]),
        ("AveragePool<kernel_shape=[3,4], pads=[1,1,1,1], count_include_pad=1>(p)", "2,4,10,10", [2, 3, 1, 2]),
    ],
)
def test_the_consumer_pads_by_itself(consumer: str, shape: str, expected: list[int]) -> None:
    after, record = changed_by(fold_pad, model_from(padded(consumer, shape), w=normal(6, 4, 3, 3)))
    assert len(record.changed) == 1
    assert len(ops(after)) == 2
    (node,) = [node for node in after.graph if node.op_type in ("Conv", "AveragePool")]
    assert list(attribute(node, "pads", ())) == expected


def test_a_max_pool_pads_a_tensor_that_is_never_negative() -> None:
    text = padded("MaxPool<kernel_shape=[3,3]>(p)", "2,4,8,9", producer="a = Relu(x)")
    after, _ = changed_by(fold_pad, model_from(text))
    assert ops(after) == ["Relu", "MaxPool"]


def test_other_consumers_still_read_the_pad() -> None:
    text = f"""g (float[2,4,9,8] x) => (float[2,6,8,9] y, float[2,4,10,11] z, float[2,4,10,11] p) {PADS}
        {{ p = Pad(x, pads) y = Conv(p, w) z = Relu(p) }}"""
    after, record = changed_by(fold_pad, model_from(text, w=normal(6, 4, 3, 3)))
    assert len(record.changed) == 1
    assert sorted(ops(after)) == ["Conv", "Pad", "Relu"]


def test_a_pad_with_axes_is_folded() -> None:
    constants = "<int64[2] pads = {2,1}, int64[1] axes = {-1}>"
    text = padded("Conv(p, w)", "2,6,7,9", constants, pad="Pad(a, pads, , axes)")
    after, _ = changed_by(fold_pad, model_from(text, w=normal(6, 4, 3, 3)))
    assert ops(after) == ["Neg", "Conv"]


@pytest.mark.parametrize(
    ("consumer", "shape", "pads", "reason"),
    [
        ("MaxPool<kernel_shape=[3,3]>(p)", "2,4,8,9", PADS, "may be negative"),
        ("AveragePool<kernel_shape=[2,2]>(p)", "2,4,9,10", PADS, "in the padding as a whole"),
        ("AveragePool<kernel_shape=[3,4], pads=[1,1,1,1]>(p)", "2,4,10,10", PADS, "does not count its own padding"),
        ("AveragePool<kernel_shape=[3,4], ceil_mode=1>(p)", "2,4,8,8", PADS, "ceil_mode"),
        ('Conv<auto_pad="SAME_UPPER">(p, w)', "2,6,10,11", PADS, "auto_pad"),
        ("Conv(p, w)", "2,6,6,9", "<int64[8] pads = {0,0,1,2,0,0,-2,1}>", "removes elements"),
        ("Conv(p, w)", "3,6,8,9", "<int64[8] pads = {1,0,1,2,0,0,0,1}>", "the batch or the channels"),
    ],
)
def test_padding_that_has_to_stay(consumer: str, shape: str, pads: str, reason: str) -> None:
    after, record = changed_by(fold_pad, model_from(padded(consumer, shape, pads), w=normal(6, 4, 3, 3)))
    assert "Pad" in ops(after)
    assert not record.changed
    assert reason in record.declined[0].what


@pytest.mark.parametrize(
    "pad", ["Pad(a, pads, one)", 'Pad<mode="edge">(a, pads)', "Pad(a, pads, v)"], ids=["one", "edge", "unknown"]
)
def test_other_values_and_modes_stay(pad: str) -> None:
    text = f"""g (float[2,4,9,8] a, float v) => (float[2,6,8,9] y, float w2)
        <int64[8] pads = {{0,0,1,2,0,0,0,1}}, float one = {{1}}> {{ p = {pad} y = Conv(p, w) w2 = Neg(v) }}"""
    after, record = changed_by(fold_pad, model_from(text, w=normal(6, 4, 3, 3)))
    assert "Pad" in ops(after)
    assert not record.changed
