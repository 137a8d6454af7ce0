"""Attention is found wherever its scale and mask are; other uses of Softmax are not attention."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model.attention import ScalePlace, find_attention
from tests.passes.attention_cases import parse

KT = "kt = Transpose <perm = [0,1,3,2]> (k)\n"
END = "p = Softmax <axis = -1> (z)\n y = MatMul (p, v)"

SCALED = {
    "scores": ("z0 = MatMul (q, kt) z = Mul (z0, half)", [ScalePlace.SCORES]),
    "scores, constant first": ("z0 = MatMul (q, kt) z = Mul (half, z0)", [ScalePlace.SCORES]),
    "scores, divided": ("z0 = MatMul (q, kt) z = Div (z0, two)", [ScalePlace.SCORES]),
    "query": ("qs = Mul (q, half) z = MatMul (qs, kt)", [ScalePlace.QUERY]),
    "key": ("ks = Mul (kt, half) z = MatMul (q, ks)", [ScalePlace.KEY]),
    "query and key": ("qs = Mul (q, root) ks = Mul (kt, root) z = MatMul (qs, ks)", [ScalePlace.QUERY, ScalePlace.KEY]),
    "query before its transpose": (
        "q0 = Transpose <perm = [0,2,1,3]> (q) qs = Mul (q0, half)"
        "qt = Transpose <perm = [0,2,1,3]> (qs) z = MatMul (qt, kt)",
        [ScalePlace.QUERY],
    ),
}
CONSTANTS = {"half": np.float32(0.5), "two": np.float32(2), "root": np.float32(0.5**0.5)}


@pytest.mark.parametrize("case", SCALED)
def test_scale_is_found_in_every_place(case: str) -> None:
    text, places = SCALED[case]
    used = {name: array for name, array in CONSTANTS.items() if name in text}
    (attention,) = find_attention(parse(KT + text + END, **used).graph)
    assert [scale.place for scale in attention.scales] == places
    assert attention.scale == pytest.approx(0.5)
    assert (attention.heads, attention.head_dim) == (2, 4)
    assert attention.masks == ()
    assert attention.key_transpose is not None


MASKED = {
    "added": "s = MatMul (q, kt) z = Add (s, mask)",
    "added, mask first": "s = MatMul (q, kt) z = Add (mask, s)",
    "before the scale": "s = MatMul (q, kt) m = Add (s, mask) z = Mul (m, half)",
    "after the scale": "s = MatMul (q, kt) m = Mul (s, half) z = Add (m, mask)",
    "after a cast and a reshape": "s = MatMul (q, kt) c = Cast <to = 1> (s) r = Reshape (c, five) m = Add (r, mask)"
    " z = Reshape (m, four)",
}


@pytest.mark.parametrize("case", MASKED)
def test_added_mask_is_found(case: str) -> None:
    constants = {
        "mask": np.zeros((5, 7), np.float32),
        "half": np.float32(0.5),
        "five": np.array([1, 1, 2, 5, 7]),
        "four": np.array([1, 2, 5, 7]),
    }
    used = {name: array for name, array in constants.items() if name in MASKED[case]}
    (attention,) = find_attention(parse(KT + MASKED[case] + END, **used).graph)
    (mask,) = attention.masks
    assert (mask.value.name, mask.fill) == ("mask", None)


@pytest.mark.parametrize(("branches", "keep"), [("s, low", True), ("low, s", False)])
def test_condition_is_found(branches: str, keep: bool) -> None:
    text = f"{KT} s = MatMul (q, kt) z = Where (mask, {branches}) {END}"
    (attention,) = find_attention(parse(text, mask=np.ones((5, 7), np.bool_), low=np.float32(-1e9)).graph)
    (mask,) = attention.masks
    assert mask.value.name == "mask"
    assert mask.keep is keep
    assert mask.fill is not None


def test_guard_dropout_and_casts_may_be_in_between() -> None:
    text = f"""{KT} z = MatMul (q, kt) p = Softmax <axis = 3> (z) n = IsNaN (p) g = Where (n, zero, p)
        c = Cast <to = 1> (g) d = Dropout (c) i = Identity (d) y = MatMul (i, v)"""
    (attention,) = find_attention(parse(text, zero=np.float32(0)).graph)
    assert attention.guard is not None
    assert [node.op_type for node in attention.path] == ["Softmax", "Where", "Cast", "Dropout", "Identity"]


def test_learned_query_and_heads_merged_into_the_batch() -> None:
    text = "kt = Transpose <perm = [0,2,1]> (k) z = MatMul (probe, kt) p = Softmax (z) y = MatMul (p, v)"
    probe = np.ones((1, 4), np.float32)
    inputs = "float[2,7,4] k, float[2,7,4] v"
    (attention,) = find_attention(parse(text, inputs=inputs, outputs="float[2,1,4] y", probe=probe).graph)
    assert (attention.heads, attention.head_dim) == (None, 4)


def test_attention_inside_a_branch_is_found() -> None:
    text = """y = If (c) <then_branch = g1 () => (float[1,2,5,4] y1) {
        kt = Transpose <perm = [0,1,3,2]> (k) z = MatMul (q, kt) p = Softmax (z) y1 = MatMul (p, v) },
        else_branch = g2 () => (float[1,2,5,4] y2) { y2 = Identity (q) }>"""
    model = parse(text, inputs="bool c, float[1,2,5,4] q, float[1,2,7,4] k, float[1,2,7,4] v")
    assert len(find_attention(model.graph)) == 1


NOT_ATTENTION = {
    "gate": "g = MatMul (q, w) p = Softmax (g) y = MatMul (p, v7)",
    "classifier": "g = MatMul (q, w) y = Softmax (g)",
    "box decoder": "kt = Transpose <perm = [0,1,3,2]> (k) s = MatMul (q, kt) p = Softmax (s) y = MatMul (p, bins)",
    "over the wrong axis": "kt = Transpose <perm = [0,1,3,2]> (k) s = MatMul (q, kt) p = Softmax <axis = 2> (s)"
    " y = MatMul (p, v)",
    "linear attention": "p = Softmax (q) kt = Transpose <perm = [0,1,3,2]> (k) c = MatMul (kt, v) y = MatMul (p, c)",
}


@pytest.mark.parametrize("case", NOT_ATTENTION)
def test_other_softmaxes_are_not_attention(case: str) -> None:
    text = NOT_ATTENTION[case]
    constants = {"w": np.ones((4, 7), np.float32), "bins": np.ones((7, 1), np.float32)}
    used = {name: array for name, array in constants.items() if f" {name})" in text}
    shape = {"classifier": "1,2,5,7", "box decoder": "1,2,5,1"}.get(case, "1,2,5,4")
    model = parse(text.replace("v7", "v"), outputs=f"float[{shape}] y", **used)
    assert find_attention(model.graph) == ()


def test_attentions_come_in_graph_order() -> None:
    text = f"""{KT} a = MatMul (q, kt) pa = Softmax (a) qa = MatMul (pa, v)
        b = MatMul (qa, kt) pb = Softmax (b) y = MatMul (pb, v)"""
    attentions = find_attention(parse(text).graph)
    assert [attention.softmax.outputs[0].name for attention in attentions] == ["pa", "pb"]


def test_records_are_frozen() -> None:
    (attention,) = find_attention(parse(KT + "z = MatMul (q, kt)" + END).graph)
    with pytest.raises(AttributeError):
        attention.guard = ir.node("Where", [])  # type: ignore[misc]
