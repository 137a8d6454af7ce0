from __future__ import annotations

import onnx_ir as ir
import pytest

from dovetail.passes.edge_pad_to_concat import edge_pad_to_concat
from tests.equality import changed_by, model_from, ops


def padded(pads: str, mode: str = "edge", rest: str = "") -> ir.Model:
    count = len(pads.split(","))
    text = f"g (float[2,3,4,5] x) => (float[a,b,c,d] y{', float[2,3,4,5] z' if rest else ''})"
    return model_from(f'{text} <int64[{count}] p = {{{pads}}}> {{ y = Pad<mode="{mode}">(x, p) {rest} }}')


@pytest.mark.parametrize(
    ("pads", "concats"),
    [("0,0,0,0,0,0,1,1", 2), ("0,0,2,1,0,0,0,3", 2), ("0,0,0,0,0,0,0,2", 1), ("1,2,1,0,0,0,1,1", 4)],
)
def test_the_border_is_repeated_by_concats(pads: str, concats: int) -> None:
    after, record = changed_by(edge_pad_to_concat, padded(pads, rest="z = Neg(x)"))
    assert len(record.changed) == 1
    assert ops(after).count("Concat") == concats
    assert "Pad" not in ops(after)


def test_two_consumers_read_the_concat() -> None:
    text = """g (float[1,2,3] x) => (float[1,2,5] y, float[1,2,5] z) <int64[6] p = {0,0,1,0,0,1}>
        { a = Pad<mode="edge">(x, p) y = Neg(a) z = Abs(a) }"""
    after, _ = changed_by(edge_pad_to_concat, model_from(text))
    assert sorted(ops(after)) == ["Abs", "Concat", "Neg", "Slice", "Slice"]


def test_other_modes_and_cropping_stay() -> None:
    for mode in ("reflect", "constant"):
        _, record = changed_by(edge_pad_to_concat, padded("0,0,0,0,0,0,1,1", mode))
        assert not record.changed
        assert not record.declined
    _, record = changed_by(edge_pad_to_concat, padded("0,0,0,0,0,0,-1,1"))
    assert not record.changed
    assert len(record.declined) == 1
