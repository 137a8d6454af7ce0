from __future__ import annotations

import pytest

from dovetail.passes.fold_pad_into_mean import fold_pad_into_mean
from tests.equality import changed_by, model_from, ops

CONSTANTS = "<int64[8] pads = {0,0,1,2,0,0,0,1}, int64[2] hw = {-1,2}, int64[1] ch = {1}, float v = {0.5}>"


def padded(consumer: str, shape: str, pad: str = "Pad(a, pads)", constants: str = CONSTANTS) -> str:
    return f"g (float[2,4,9,8] x) => (float[{shape}] y) {constants} {{ a = Neg(x) p = {pad} y = {consumer} }}"


@pytest.mark.parametrize(("pad", "added"), [("Pad(a, pads)", []), ("Pad(a, pads, v)", ["Add"])])
@pytest.mark.parametrize(
    ("consumer", "shape"),
    [("GlobalAveragePool(p)", "2,4,1,1"), ("ReduceMean(p, hw)", "2,4,1,1"), ("ReduceMean<keepdims=0>(p, hw)", "2,4")],
)
def test_the_mean_reads_the_tensor_without_its_padding(consumer: str, shape: str, pad: str, added: list[str]) -> None:
    after, record = changed_by(fold_pad_into_mean, model_from(padded(consumer, shape, pad)))
    assert len(record.changed) == 1
    assert ops(after) == ["Neg", consumer.partition("(")[0].partition("<")[0], "Mul", *added]


def test_other_consumers_still_read_the_pad() -> None:
    text = f"""g (float[2,4,9,8] x) => (float[2,4,1,1] y, float[2,4,10,11] z, float[2,4,10,11] p) {CONSTANTS}
        {{ p = Pad(x, pads) y = GlobalAveragePool(p) z = Relu(p) }}"""
    after, record = changed_by(fold_pad_into_mean, model_from(text))
    assert len(record.changed) == 1
    assert sorted(ops(after)) == ["GlobalAveragePool", "Mul", "Pad", "Relu"]


@pytest.mark.parametrize(
    ("consumer", "shape", "pads", "reasons"),
    [
        ("ReduceMean(p, ch)", "2,1,10,11", "0,0,1,2,0,0,0,1", []),
        ("ReduceMax(p, hw)", "2,4,1,1", "0,0,1,2,0,0,0,1", []),
        ("GlobalAveragePool(p)", "2,5,1,1", "0,0,1,2,0,1,0,1", ["the batch or the channels"]),
        ("GlobalAveragePool(p)", "2,4,1,1", "0,0,-1,2,0,0,0,1", ["removes elements"]),
    ],
)
def test_padding_that_has_to_stay(consumer: str, shape: str, pads: str, reasons: list[str]) -> None:
    text = padded(consumer, shape, constants=CONSTANTS.replace("0,0,1,2,0,0,0,1", pads))
    after, record = changed_by(fold_pad_into_mean, model_from(text))
    assert ops(after)[:2] == ["Neg", "Pad"]
    assert not record.changed
    assert len(record.declined) == len(reasons)
    assert all(reason in site.what for reason, site in zip(reasons, record.declined, strict=True))
