"""The decomposed Attention operator gives the same result as ONNX Runtime's own kernel."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.model.attention import find_attention
from dovetail.passes.attention_scale import attention_scale
from dovetail.passes.decompose_attention import decompose_attention
from tests.passes.attention_cases import INPUTS, apply, ops, parse

TRIANGLE = np.tril(np.ones((5, 7), np.bool_), 2)
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
