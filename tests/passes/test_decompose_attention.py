"""The decomposed Attention operator gives the same result as ONNX Runtime's own kernel."""

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
# With is_causal, all keys of row 2 are masked.
LATE = np.arange(7) >= np.arange(5)[:, None] + (np.arange(5)[:, None] == 2)
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
def test_attention_is_decomposed(case: str) -> None:
    text, constants = PLAIN[case]
    model = parse(text, opset=23, **constants)
    assert len(apply(model, decompose_attention).changed) == 1
    (attention,) = find_attention(model.graph)
    assert len(attention.masks) == (case not in ("plain", "scaled"))
    assert attention_scale(model).changed == ()


def test_mask_from_the_inputs() -> None:
    for dtype in ("float", "bool"):
        model = parse("y = Attention (q, k, v, m)", inputs=f"{INPUTS}, {dtype}[5,7] m", opset=23)
        assert len(apply(model, decompose_attention).changed) == 1
        assert ops(model)["Where"] == (dtype == "bool")


FULLY_MASKED_ROWS = {
    "condition": ("", ROW_MASKED),
    "condition per head": ("", np.stack([TRIANGLE, ROW_MASKED])[None]),
    "-inf": ("", np.where(ROW_MASKED, 0.5, -np.inf)),
    "lowest float": ("", np.where(ROW_MASKED, 0.5, LOWEST)),
    "condition, causal": ("<is_causal = 1>", LATE),
    "-inf, causal": ("<is_causal = 1>", np.where(LATE, 0.5, -np.inf)),
}


@pytest.mark.parametrize("case", FULLY_MASKED_ROWS)
def test_query_with_all_keys_masked_gives_zeros(case: str) -> None:
    attributes, mask = FULLY_MASKED_ROWS[case]
    model = parse(f"y = Attention {attributes} (q, k, v, mask)", opset=23, mask=mask)
    before = model.clone()
    assert len(apply(model, decompose_attention).changed) == 1
    assert ops(model)["Mul"] == 2  # the scale, and the factor of the rows
    after, _ = normalize(before)
    constants = [constant_of(value) for value in after.graph.initializers.values()]
    assert all(np.isfinite(array).all() for array in constants if array is not None)
    output = equality.run(after, equality.random_inputs(after))["y"]
    assert not output[0, 1, 2].any()
    assert output[0, 1, 3].any()


def test_low_but_finite_mask_is_only_added() -> None:
    model = parse("y = Attention (q, k, v, mask)", opset=23, mask=np.where(ROW_MASKED, 0.0, -1e30))
    apply(model, decompose_attention)
    assert ops(model)["Mul"] == 1
    assert find_attention(model.graph)[0].masks[0].value.name == "mask"


@pytest.mark.parametrize(("attributes", "mask"), [("", ROW_MASKED), ("<is_causal = 1>", LATE), ("", TRIANGLE)])
def test_condition_from_the_inputs_may_mask_whole_rows(attributes: str, mask: np.ndarray) -> None:
    """The condition and the result have a second consumer each."""
    body = f"y = Attention {attributes} (q, k, v, m) z = Neg (y) f = Cast <to = 1> (m) n = Neg (f)"
    outputs = "float[1,2,5,4] y, float[1,2,5,4] z, float[5,7] n"
    model = parse(body, inputs=f"{INPUTS}, bool[5,7] m", outputs=outputs, opset=23)
    before = model.clone()
    apply(model, decompose_attention)
    feed = equality.random_inputs(before) | {"m": mask}
    expected, actual = equality.run(before, feed), equality.run(model, feed)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-5, atol=1e-6)
    assert expected["y"][0, 0, 2].any() == bool(mask is TRIANGLE)
    constants = [constant_of(value) for value in model.graph.initializers.values()]
    assert all(
        np.isfinite(array).all() for array in constants if array is not None
    )  # so that all of them can be calibrated


def test_mask_shared_by_two_attentions_stays_for_the_other() -> None:
    """One is decomposed, the other is declined, and both use the same condition, which masks all keys of a row."""
    body = "y = Attention (q, k, v, mask) z = Attention <softcap = 2.0> (q, k, v, mask)"
    model = parse(body, outputs="float[1,2,5,4] y, float[1,2,5,4] z", opset=23, mask=ROW_MASKED)
    record = apply(model, decompose_attention)
    assert (len(record.changed), len(record.declined)) == (1, 1)


def test_heads_in_the_last_axis_are_split_and_merged() -> None:
    text = "y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)"
    model = parse(text, inputs=FLAT, outputs="float[2,5,12] y", opset=23)
    assert len(apply(model, decompose_attention).changed) == 1
    (attention,) = find_attention(model.graph)
    assert (attention.heads, attention.head_dim) == (2, 4)


CACHE = f"{INPUTS}, float[1,2,3,4] pk, float[1,2,3,4] pv"
DECLINED = {
    "softcap": ("y = Attention <softcap = 2.0> (q, k, v)", INPUTS, "float[1,2,5,4] y", "caps the scores"),
    "cache": (
        "y, a, b = Attention (q, k, v, , pk, pv)",
        CACHE,
        "float[1,2,5,4] y, float[1,2,10,4] a, float[1,2,10,4] b",
        "uses a cache",
    ),
    "shared heads": (
        "y = Attention (q, k, v)",
        "float[1,4,5,4] q, float[1,2,7,4] k, float[1,2,7,4] v",
        "float[1,4,5,4] y",
        "query heads share key heads",
    ),
    "scores are used": (
        "y, , , s = Attention (q, k, v)",
        INPUTS,
        "float[1,2,5,4] y, float[1,2,5,7] s",
        "its other outputs (keys, values or scores) are used",
    ),
    "precision": (
        "y = Attention <softmax_precision = 11> (q, k, v)",
        INPUTS,
        "float[1,2,5,4] y",
        "computed in another type (11)",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_unsupported_attention_is_declined(case: str) -> None:
    text, inputs, outputs, reason = DECLINED[case]
    model = parse(text, inputs=inputs, outputs=outputs, opset=23)
    record = decompose_attention(model)
    assert record.changed == ()
    assert reason in record.declined[0].what
    assert ops(model)["Attention"] == 1
