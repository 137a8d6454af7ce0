"""Attention is split into one attention per head."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.passes.split_heads import split_heads
from tests.equality import normal
from tests.passes.attention_cases import apply, ops, parse

OPERANDS = """
    qh = Reshape (q, cut_q) kh = Reshape (k, cut_k) vh = Reshape (v, cut_k)
    qt = Transpose <perm = [0,2,1,3]> (qh) kt = Transpose <perm = [0,2,3,1]> (kh) vt = Transpose <perm = [0,2,1,3]> (vh)
    s = MatMul (qt, kt)"""
END = "m = MatMul (p, vt) o = Transpose <perm = [0,2,1,3]> (m) y = Reshape (o, merged)"


def case(
    scores: str = "p = Softmax (s)", end: str = END, *, batch: int = 2, extra: str = "", **constants: object
) -> ir.Model:
    return parse(
        f"{OPERANDS} {scores} {end}",
        inputs=f"float[{batch},5,12] q, float[{batch},7,12] k, float[{batch},7,12] v",
        outputs=f"float[A,12] y{extra}",
        cut_q=np.array([batch, 5, 3, 4]),
        cut_k=np.array([batch, 7, 3, 4]),
        merged=np.array([batch * 5, 12]),
        **constants,
    )


def test_every_head_has_its_own_matmuls() -> None:
    model = case()
    record = apply(model, split_heads)
    assert [(site.where, site.what) for site in record.changed] == [("m", "split into 3 attentions of one head")]
    assert ops(model) == {"Split": 3, "Transpose": 3, "MatMul": 6, "Softmax": 3, "Concat": 1, "Reshape": 1}


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 3, 1, 7), (2, 1, 5, 7), (3, 5, 7), (5, 7), (7,)])
def test_every_head_gets_its_part_of_the_mask(shape: tuple[int, ...]) -> None:
    model = case("a = Add (s, mask) p = Softmax (a)", mask=normal(*shape))
    apply(model, split_heads)
    assert ops(model)["Add"] == 3


@pytest.mark.parametrize(("used", "shape"), [("kt", "2,3,4,7"), ("qh", "2,5,3,4"), ("vt", "2,3,7,4")])
def test_tensor_with_another_consumer_stays(used: str, shape: str) -> None:
    model = case(extra=f", float[{shape}] {used}")
    record = apply(model, split_heads)
    assert record.changed


DECLINED = {
    "its scores are used elsewhere too": {"extra": ", float[2,3,5,7] s"},
    "its scores are changed by something other than masks": {
        "scores": "a = Mul (s, half) p = Softmax (a)",
        "half": 0.5,
    },
    "its mask is not an added constant": {"scores": "n = ReduceMax (q) a = Add (s, n) p = Softmax (a)"},
    "its heads are not merged by a Transpose and a Reshape after it": {"end": END, "extra": ", float[2,3,5,4] m"},
}


@pytest.mark.parametrize("reason", DECLINED)
def test_unsupported_attention_is_declined(reason: str) -> None:
    model = case(**DECLINED[reason])
    record = apply(model, split_heads)
    assert [site.what for site in record.declined] == [reason]
    assert ops(model)["Softmax"] == 1


HEADS_FIRST = "kt = Transpose <perm = [0,1,3,2]> (k) s = MatMul (q, kt) p = Softmax (s) y = MatMul (p, v)"


def plain(windows: int, heads: int) -> ir.Model:
    inputs = ", ".join(f"float[{windows},{heads},{tokens},4] {name}" for name, tokens in (("q", 5), ("k", 7), ("v", 7)))
    return parse(HEADS_FIRST, inputs=inputs, outputs=f"float[{windows},{heads},5,4] y")


def test_heads_that_are_not_split_from_the_last_axis_are_declined() -> None:
    record = apply(plain(2, 3), split_heads)
    assert [site.what for site in record.declined] == ["its heads are not split from the last axis"]


@pytest.mark.parametrize("model", [plain(2, 1), plain(1, 3), case(batch=1)])
def test_one_head_or_one_window_is_not_changed(model: ir.Model) -> None:
    record = apply(model, split_heads)
    assert not record.changed
    assert not record.declined
