"""Reshapes and transposes around attention end in one form, and tensors with other consumers stay."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.model import edit
from dovetail.model.attention import find_attention
from dovetail.passes.probabilities_first import probabilities_first
from dovetail.passes.simplify_attention_layout import simplify_attention_layout
from dovetail.passes.softmax_over_last_axis import softmax_over_last_axis
from dovetail.passes.split_fused_qkv import split_fused_qkv
from tests.passes.attention_cases import apply, ops, parse

HEADS = "h = Reshape (x, split) t = Transpose <perm = [0,2,1,3]> (h)\n"
TAIL = "z = MatMul (q, kt) p = Softmax (z) m = MatMul (p, v)\n"
OUT = "o = Transpose <perm = [0,2,1,3]> (m) y = Reshape (o, merged)"
KEYS = {
    "two transposes": ("kt = Transpose <perm = [0,1,3,2]> (t)", {}),
    "reshape, transpose, reshape": (
        "a = Reshape (t, folded) b = Transpose <perm = [0,2,1]> (a) kt = Reshape (b, back)",
        {"folded": lambda batch: [batch * 2, 7, 4], "back": lambda batch: [batch, 2, 4, 7]},
    ),
    "one transpose": ("kt = Transpose <perm = [0,2,3,1]> (h)", {}),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("case", KEYS)
@pytest.mark.parametrize("extra_output", ["", "t", "h", "kt"])
def test_key_arrives_by_one_transpose(case: str, batch: int, extra_output: str) -> None:
    text, shapes = KEYS[case]
    constants = {name: np.array(shape(batch)) for name, shape in shapes.items()}
    sizes = {"t": f"{batch},2,7,4", "h": f"{batch},7,2,4", "kt": f"{batch},2,4,7"}
    extra = f", float[{sizes[extra_output]}] {extra_output}" if extra_output else ""
    model = parse(
        HEADS + text + TAIL + OUT,
        inputs=f"float[{batch},7,8] x, float[{batch},2,5,4] q, float[{batch},2,7,4] v",
        outputs=f"float[{batch},5,8] y{extra}",
        split=np.array([batch, 7, 2, 4]),
        merged=np.array([batch, 5, 8]),
        **constants,
    )
    record = apply(model, simplify_attention_layout)
    assert len(record.changed) == (case != "one transpose")
    (attention,) = find_attention(model.graph)
    assert attention.key_transpose is not None
    assert list(edit.attribute(attention.key_transpose, "perm", ())) == [0, 2, 3, 1]
    transposes = 2 + (extra_output == "t" or (case == "one transpose"))  # the one in HEADS is removed if it is unused
    assert ops(model)["Transpose"] == transposes
    assert ops(model)["Reshape"] == 2


def test_merging_of_heads_is_shortened() -> None:
    text = "kt = Transpose <perm = [0,1,3,2]> (k)" + TAIL + "o = Transpose <perm = [0,2,1,3]> (m) a = Reshape (o, five)"
    text += " b = Squeeze (a, axes) y = Reshape (b, merged)"
    model = parse(
        text,
        outputs="float[1,5,8] y",
        five=np.array([1, 1, 5, 8]),
        axes=np.array([0]),
        merged=np.array([1, 5, 8]),
    )
    assert len(apply(model, simplify_attention_layout).changed) == 1
    assert (ops(model)["Transpose"], ops(model)["Reshape"], ops(model)["Squeeze"]) == (2, 1, 0)


def test_channels_first_value_is_transposed() -> None:
    text = """kt = Transpose <perm = [0,1,3,2]> (k) z = MatMul (q, kt) p = Softmax (z)
        pt = Transpose <perm = [0,1,3,2]> (p) y = MatMul (v, pt)"""
    inputs = "float[1,2,5,4] q, float[1,2,7,4] k, float[1,2,6,7] v"
    for outputs in ("float[1,2,6,5] y", "float[1,2,6,5] y, float[1,2,7,5] pt"):
        model = parse(text, inputs=inputs, outputs=outputs)
        assert find_attention(model.graph) == ()
        assert len(apply(model, probabilities_first).changed) == 1
        assert len(find_attention(model.graph)) == 1


def test_softmax_axis_becomes_negative() -> None:
    text = "kt = Transpose <perm = [0,1,3,2]> (k) z = MatMul (q, kt) p = Softmax <axis = 3> (z) y = MatMul (p, v)"
    model = parse(text)
    assert len(apply(model, softmax_over_last_axis).changed) == 1
    (attention,) = find_attention(model.graph)
    assert edit.attribute(attention.softmax, "axis", None) == -1


REST = "kt = Transpose <perm = [0,1,3,2]> (k) z = MatMul (q, kt) p = Softmax (z) m = MatMul (p, v)" + OUT
PERMUTED = "r = Reshape (x, shape) t = Transpose <perm = [2,0,3,1,4]> (r)\n"
SELECTED = {
    "gather": PERMUTED + "q = Gather (t, n0) k = Gather (t, n1) v = Gather (t, n2)",
    "gather from the back": PERMUTED + "q = Gather (t, m3) k = Gather (t, n1) v = Gather (t, m1)",
    "split and squeeze": PERMUTED + "a, b, c = Split <axis = 0, num_outputs = 3> (t)"
    " q = Squeeze (a, i0) k = Squeeze (b, i0) v = Squeeze (c, i0)",
    "slice and squeeze": PERMUTED + "a = Slice (t, i0, i1, i0) b = Slice (t, i1, i2, i0) c = Slice (t, i2, i3, i0)"
    " q = Squeeze (a, i0) k = Squeeze (b, i0) v = Squeeze (c, i0)",
    "slice and reshape": PERMUTED + "a = Slice (t, i0, i1, i0) b = Slice (t, i1, i2, i0) c = Slice (t, i2, i3, i0)"
    " q = Reshape (a, four) k = Reshape (b, four) v = Reshape (c, four)",
    "selected before the transpose": "t = Reshape (x, shape) a = Gather <axis = 2> (t, n0)"
    " b = Gather <axis = 2> (t, n1) c = Gather <axis = 2> (t, n2) q = Transpose <perm = [0,2,1,3]> (a)"
    " k = Transpose <perm = [0,2,1,3]> (b) v = Transpose <perm = [0,2,1,3]> (c)",
    "sliced projection": "a = Slice (x, i0, i8, i2) b = Slice (x, i8, i16, i2) c = Slice (x, i16, i24, i2)"
    " d = Reshape (a, heads) e = Reshape (b, heads) f = Reshape (c, heads) q = Transpose <perm = [0,2,1,3]> (d)"
    " k = Transpose <perm = [0,2,1,3]> (e) v = Transpose <perm = [0,2,1,3]> (f)",
}


def fused(text: str, *, batch: int = 2, outputs: str = "", **more: np.ndarray) -> dict[str, object]:
    constants: dict[str, object] = {f"i{n}": np.array([n]) for n in (0, 1, 2, 3, 8, 16, 24)}
    constants |= {f"n{n}": np.array(n) for n in (0, 1, 2)} | {"m1": np.array(-1), "m3": np.array(-3)}
    constants |= {"shape": np.array([batch, 7, 3, 2, 4]), "four": np.array([batch, 2, 7, 4])}
    constants |= {"heads": np.array([batch, 7, 2, 4]), "merged": np.array([batch, 7, 8])}
    tokens = (text + REST).replace("(", " ").replace(")", " ").replace(",", " ").split()
    return {name: array for name, array in constants.items() if name in tokens} | more


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("case", SELECTED)
def test_q_k_and_v_come_from_one_split(case: str, batch: int) -> None:
    model = parse(
        SELECTED[case] + REST,
        inputs=f"float[{batch},7,24] x",
        outputs=f"float[{batch},7,8] y",
        **fused(SELECTED[case], batch=batch),
    )
    assert len(apply(model, split_fused_qkv, simplify_attention_layout).changed) == 1
    assert ops(model) == {"Split": 1, "Reshape": 4, "Transpose": 4, "MatMul": 2, "Softmax": 1}
    assert split_fused_qkv(model).changed == ()


@pytest.mark.parametrize("tokens", ["7", "7,1"], ids=["sequence", "window"])
@pytest.mark.parametrize("batch", [1, 2])
def test_heads_merged_into_the_batch(batch: int, tokens: str) -> None:
    text = (
        PERMUTED
        + """u = Reshape (t, folded) a = Gather (u, n0) b = Gather (u, n1) c = Gather (u, n2)
        q = Reshape (a, four) k = Reshape (b, four) v = Reshape (c, four)"""
    )
    model = parse(
        text + REST,
        inputs=f"float[{batch},{tokens},24] x",
        outputs=f"float[{batch},7,8] y",
        **fused(text, batch=batch, folded=np.array([3, batch * 2, 7, 4])),
    )
    assert len(apply(model, split_fused_qkv).changed) == 1
    apply(model, simplify_attention_layout)
    assert ops(model) == {"Split": 1, "Reshape": 4, "Transpose": 4, "MatMul": 2, "Softmax": 1}


def test_other_consumers_are_kept() -> None:
    text = SELECTED["slice and squeeze"]
    for extra_output in ("float[3,2,2,7,4] t", "float[1,2,2,7,4] b", "float[2,2,7,4] k"):
        model = parse(
            text + REST, inputs="float[2,7,24] x", outputs=f"float[2,7,8] y, {extra_output}", **fused(text, batch=2)
        )
        assert len(apply(model, split_fused_qkv).changed) == 1


def test_interleaved_projection_is_declined() -> None:
    text = "r = Reshape (x, shape) t = Transpose <perm = [3,0,2,1,4]> (r) q = Gather (t, n0) k = Gather (t, n1)"
    text += " v = Gather (t, n2)"
    constants = fused(text) | {"shape": np.array([2, 7, 2, 3, 4])}
    model = parse(text + REST, inputs="float[2,7,24] x", outputs="float[2,7,8] y", **constants)
    record = apply(model, split_fused_qkv)
    assert record.changed == ()
    assert "Q, K and V are interleaved" in record.declined[0].what


def test_slices_that_do_not_cover_the_axis_stay() -> None:
    text = SELECTED["sliced projection"]
    model = parse(text + REST, inputs="float[2,7,32] x", outputs="float[2,7,8] y", **fused(text))
    assert apply(model, split_fused_qkv).changed == ()


def test_slices_outside_attention_stay() -> None:
    text = PERMUTED + "a = Gather (t, n0) b = Gather (t, n1) y = Add (a, b)"
    constants = {name: array for name, array in fused(text).items() if name != "merged"}
    model = parse(text, inputs="float[2,7,24] x", outputs="float[2,2,7,4] y", **constants)
    assert apply(model, split_fused_qkv).changed == ()


def test_key_with_a_cast_between_its_transposes_is_not_changed() -> None:
    text = HEADS + "c = Cast <to = 10> (t) kt = Transpose <perm = [0,1,3,2]> (c) qh = Cast <to = 10> (q)\n"
    text += "zh = MatMul (qh, kt) z = Cast <to = 1> (zh) p = Softmax (z) y = MatMul (p, v)"
    model = parse(
        text,
        inputs="float[1,7,8] x, float[1,2,5,4] q, float[1,2,7,4] v",
        outputs="float[1,2,5,4] y",
        split=np.array([1, 7, 2, 4]),
    )
    record = apply(model, simplify_attention_layout)
    (attention,) = find_attention(model.graph)
    assert attention.key_transpose is not None
    assert [site.what for site in record.declined] == ["there is a Cast between the reshapes and transposes"]
    assert (record.changed, ops(model)["Transpose"]) == ((), 2)


def test_two_attentions_that_share_a_key_are_both_found() -> None:
    text = HEADS + "kt = Transpose <perm = [0,1,3,2]> (t)" + TAIL + OUT
    text += " z2 = MatMul (v2, kt) p2 = Softmax (z2) w = MatMul (p2, v)"
    model = parse(
        text,
        inputs="float[1,7,8] x, float[1,2,5,4] q, float[1,2,7,4] v, float[1,2,3,4] v2",
        outputs="float[1,5,8] y, float[1,2,3,4] w",
        split=np.array([1, 7, 2, 4]),
        merged=np.array([1, 5, 8]),
    )
    apply(model, simplify_attention_layout)
    assert len(find_attention(model.graph)) == 2
