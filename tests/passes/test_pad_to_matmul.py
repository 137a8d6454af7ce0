from __future__ import annotations

import pytest

from dovetail.passes.pad_to_matmul import pad_to_matmul
from tests.equality import changed_by, model_from, ops


def padded(shape: str, pads: str, pad: str = "Pad(a, pads)", value: float = 0) -> str:
    rank = shape.count(",") + 1
    constants = f"<int64[{2 * rank}] pads = {{{pads}}}, float v = {{{value}}}>"
    axes = ",".join("abcde"[:rank])
    return f"g (float[{shape}] x) => (float[{axes}] y) {constants} {{ a = Neg(x) p = {pad} y = Neg(p) }}"


@pytest.mark.parametrize(
    ("shape", "pads", "expected"),
    [
        ("2,5,4", "0,1,0,0,1,2", ["Pad", "MatMul"]),
        ("2,5,4", "1,0,0,0,0,2", ["Pad", "MatMul"]),
        ("2,5,4", "0,0,3,0,0,1", ["MatMul"]),
        ("3,4", "0,0,0,2", ["MatMul"]),
        ("1,2,3,2,4", "0,0,1,0,0,0,0,0,0,1", ["Pad", "MatMul"]),
    ],
)
def test_the_last_axis_is_padded_by_a_matmul(shape: str, pads: str, expected: list[str]) -> None:
    after, record = changed_by(pad_to_matmul, model_from(padded(shape, pads)))
    assert len(record.changed) == 1
    assert ops(after) == ["Neg", *expected, "Neg"]


def test_every_consumer_of_the_pad_reads_the_matmul() -> None:
    text = """g (float[2,5,4] x) => (float[2,6,6] y, float[2,6,6] z, float[2,6,6] p) <int64[6] pads = {0,0,0,0,1,2}>
        { p = Pad(x, pads) y = Neg(p) z = Relu(p) }"""
    after, _ = changed_by(pad_to_matmul, model_from(text))
    assert sorted(ops(after)) == ["MatMul", "Neg", "Pad", "Relu"]


@pytest.mark.parametrize(
    ("shape", "pads", "value", "reasons"),
    [
        ("2,5,4", "0,1,1,0,0,1", 0, []),
        ("1,2,5,4", "0,0,0,0,0,0,1,1", 0, []),
        ("2,5,4", "0,0,0,0,0,1", 0.5, ["does not pad with zeros"]),
        ("2,5,4", "0,-1,0,0,0,1", 0, ["removes elements"]),
        ("1,5000", "0,0,0,1", 0, ["too large"]),
    ],
)
def test_padding_that_has_to_stay(shape: str, pads: str, value: float, reasons: list[str]) -> None:
    after, record = changed_by(pad_to_matmul, model_from(padded(shape, pads, "Pad(a, pads, v)", value)))
    assert ops(after) == ["Neg", "Pad", "Neg"]
    assert not record.changed
    assert len(record.declined) == len(reasons)
    assert all(reason in site.what for reason, site in zip(reasons, record.declined, strict=True))
