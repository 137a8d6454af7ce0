"""The Attention operator, written out, gives what ONNX Runtime's own kernel gives."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.model.attention import find_attention
from dovetail.model.edit import constant_of
from dovetail.passes.attention_scale import attention_scale
from dovetail.passes.decompose_attention import decompose_attention
from dovetail.passes.normalize import normalize
from tests import equality
from tests.passes.attention_cases import INPUTS, apply, ops, parse

TRIANGLE = np.tril(np.ones((5, 7), np.bool_), 2)
ROW_MASKED = np.where(np.arange(5)[:, None] == 2, False, TRIANGLE)
LATE = np.arange(7) >= np.arange(5)[:, None] + (np.arange(5)[:, None] == 2)  # with is_causal, row 2 sees no key
LOWEST = np.finfo(np.float32).min
FLAT = "float[2,5,8] q, float[2,7,8] k, float[2,7,12] v"
PLAIN = {
    "plain": ("y = Attention (q, k, v)", {}),
    "scaled": ("y = Attention <scale = 0.3> (q, k, v)", {}),
    "masked": ("y = Attention (q, k, v, mask)", {"mask": np.where(TRIANGLE, 0.0, -100.0)}),
    "masked by a condition": ("y = Attention (q, k, v, mask)", {"mask": TRIANGLE}),
    "causal": ("y = Attention <is_causal = 1> (q, k, v)", {}),
}


@pytest.mark.parametrize("case", PLAIN)
def test_attention_is_written_out(case: str) -> None:
    text, constants = PLAIN[case]
    model = parse(text, opset=23, **constants)
    assert len(apply(model, decompose_attention).changed) == 1
    (found,) = find_attention(model.graph)
    assert len(found.masks) == (case not in ("plain", "scaled"))
    assert attention_scale(model).changed == ()


def test_mask_from_the_inputs() -> None:
    for kind in ("float", "bool"):
        model = parse("y = Attention (q, k, v, m)", inputs=f"{INPUTS}, {kind}[5,7] m", opset=23)
        assert len(apply(model, decompose_attention).changed) == 1
        assert ops(model)["Where"] == (kind == "bool")


WHOLE_ROWS = {
    "condition": ("", ROW_MASKED),
    "condition per head": ("", np.stack([TRIANGLE, ROW_MASKED])[None]),
    "-inf": ("", np.where(ROW_MASKED, 0.5, -np.inf)),
    "lowest number": ("", np.where(ROW_MASKED, 0.5, LOWEST)),
    "condition, causal": ("<is_causal = 1>", LATE),
    "-inf, causal": ("<is_causal = 1>", np.where(LATE, 0.5, -np.inf)),
}


@pytest.mark.parametrize("case", WHOLE_ROWS)
def test_a_query_that_sees_no_key_gives_zeros(case: str) -> None:
    attributes, mask = WHOLE_ROWS[case]
    model = parse(f"y = Attention {attributes} (q, k, v, mask)", opset=23, mask=mask)
    before = model.clone()
    assert len(apply(model, decompose_attention).changed) == 1
    assert ops(model)["Mul"] == 2  # the scale, and the rows
    after, _ = normalize(before)
    constants = [constant_of(value) for value in after.graph.initializers.values()]
    assert all(np.isfinite(array).all() for array in constants if array is not None)
    found = equality.run(after, equality.random_inputs(after))["y"]
    assert not found[0, 1, 2].any()
    assert found[0, 1, 3].any()


def test_a_low_but_finite_mask_is_only_added() -> None:
    model = parse("y = Attention (q, k, v, mask)", opset=23, mask=np.where(ROW_MASKED, 0.0, -1e30))
    apply(model, decompose_attention)
    assert ops(model)["Mul"] == 1
    assert find_attention(model.graph)[0].masks[0].value.name == "mask"


@pytest.mark.parametrize(("attributes", "mask"), [("", ROW_MASKED), ("<is_causal = 1>", LATE), ("", TRIANGLE)])
def test_a_condition_from_the_inputs_may_mask_whole_rows(attributes: str, mask: np.ndarray) -> None:
    """The condition and the result have a second reader each."""
    body = f"y = Attention {attributes} (q, k, v, m) z = Neg (y) f = Cast <to = 1> (m) n = Neg (f)"
    outputs = "float[1,2,5,4] y, float[1,2,5,4] z, float[5,7] n"
    model = parse(body, inputs=f"{INPUTS}, bool[5,7] m", outputs=outputs, opset=23)
    before = model.clone()
    apply(model, decompose_attention)
    feed = equality.random_inputs(before) | {"m": mask}
    expected, found = equality.run(before, feed), equality.run(model, feed)
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)
    assert expected["y"][0, 0, 2].any() == bool(mask is TRIANGLE)
    constants = [constant_of(value) for value in model.graph.initializers.values()]
    assert all(np.isfinite(array).all() for array in constants if array is not None)  # a calibration can look at all


def test_masks_shared_by_two_attentions_stay_for_the_other() -> None:
    """One is written out, the other declines, and both read the same condition, of which a row masks all keys."""
    body = "y = Attention (q, k, v, mask) z = Attention <softcap = 2.0> (q, k, v, mask)"
    model = parse(body, outputs="float[1,2,5,4] y, float[1,2,5,4] z", opset=23, mask=ROW_MASKED)
    record = apply(model, decompose_attention)
    assert (len(record.changed), len(record.declined)) == (1, 1)


def test_folded_heads_are_split_and_merged() -> None:
    text = "y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)"
    model = parse(text, inputs=FLAT, outputs="float[2,5,12] y", opset=23)
    assert len(apply(model, decompose_attention).changed) == 1
    (found,) = find_attention(model.graph)
    assert (found.heads, found.head_dim) == (2, 4)


CACHE = f"{INPUTS}, float[1,2,3,4] pk, float[1,2,3,4] pv"
DECLINED = {
    "softcap": ("y = Attention <softcap = 2.0> (q, k, v)", INPUTS, "float[1,2,5,4] y", "caps the scores"),
    "cache": (
        "y, a, b = Attention (q, k, v, , pk, pv)",
        CACHE,
        "float[1,2,5,4] y, float[1,2,10,4] a, float[1,2,10,4] b",
        "cache",
    ),
    "shared heads": (
        "y = Attention (q, k, v)",
        "float[1,4,5,4] q, float[1,2,7,4] k, float[1,2,7,4] v",
        "float[1,4,5,4] y",
        "share",
    ),
    "scores are read": (
        "y, , , s = Attention (q, k, v)",
        INPUTS,
        "float[1,2,5,4] y, float[1,2,5,7] s",
        "read too",
    ),
    "precision": ("y = Attention <softmax_precision = 11> (q, k, v)", INPUTS, "float[1,2,5,4] y", "computed as 11"),
}


@pytest.mark.parametrize("case", DECLINED)
def test_other_attention_declines(case: str) -> None:
    text, inputs, outputs, reason = DECLINED[case]
    model = parse(text, inputs=inputs, outputs=outputs, opset=23)
    record = decompose_attention(model)
    assert record.changed == ()
    assert reason in record.declined[0].what
    assert ops(model)["Attention"] == 1
