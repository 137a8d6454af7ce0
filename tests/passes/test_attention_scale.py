"""The scale becomes one Mul on Q with the same result, and other consumers are not changed."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.model import edit
from dovetail.model.attention import find_attention
from dovetail.passes.attention_scale import attention_scale
from tests.passes.attention_cases import apply, ops, parse

KT = "kt = Transpose <perm = [0,1,3,2]> (k)\n"
END = "p = Softmax <axis = -1> (z)\n y = MatMul (p, v)"
MASK = np.where(np.tril(np.ones((5, 7)), 2) > 0, 0.0, -1e9)
CONSTANTS = {
    "third": np.float32(1 / 3),
    "three": np.array([3.0]),
    "root": np.array([3**-0.5]),
    "mask": MASK,
    "low": np.float32(-1e9),
    "keep": MASK == 0,
    "ones": np.float32(1),
    "flat": np.array([1, 5, 8]),
    "heads": np.array([1, 5, 2, 4]),
    "perhead": np.array([0.5, 0.25]).reshape(2, 1, 1),
}
MOVED = {
    "scores": "s = MatMul (q, kt) z = Mul (s, third)",
    "scores, constant first": "s = MatMul (q, kt) z = Mul (third, s)",
    "scores, divided": "s = MatMul (q, kt) z = Div (s, three)",
    "key": "ks = Mul (kt, third) z = MatMul (q, ks)",
    "key before its transpose": "ks = Mul (k, third) k2 = Transpose <perm = [0,1,3,2]> (ks) z = MatMul (q, k2)",
    "query and key": "qs = Mul (q, root) ks = Mul (kt, root) z = MatMul (qs, ks)",
    "query and scores": "qs = Mul (q, root) s = MatMul (qs, kt) z = Mul (s, root)",
    "query, divided": "qs = Div (q, three) z = MatMul (qs, kt)",
    "query, rank 1": "qs = Mul (q, root) z = MatMul (qs, kt)",
    "query before its layout": "qt = Transpose <perm = [0,2,1,3]> (q) qf = Reshape (qt, flat) qs = Mul (qf, third)"
    " qh = Reshape (qs, heads) q2 = Transpose <perm = [0,2,1,3]> (qh) z = MatMul (q2, kt)",
    "before the mask": "s = MatMul (q, kt) m = Mul (s, third) z = Add (m, mask)",
    "after the mask": "s = MatMul (q, kt) m = Add (s, mask) z = Mul (m, third)",
    "after a condition": "s = MatMul (q, kt) m = Where (keep, s, low) z = Mul (m, third)",
    "after a reshape": "s = MatMul (q, kt) c = Identity (s) z = Mul (c, third)",
}


def used(text: str) -> dict[str, object]:
    return {name: array for name, array in CONSTANTS.items() if name in text.replace("(", " ").replace(")", " ")}


@pytest.mark.parametrize("case", MOVED)
def test_scale_moves_to_the_query(case: str) -> None:
    text = KT + MOVED[case] + END
    model = parse(text, **used(MOVED[case]))
    record = apply(model, attention_scale)
    assert len(record.changed) == 1
    (attention,) = find_attention(model.graph)
    (scale,) = attention.scales
    assert scale.node.op_type == "Mul"
    assert scale.node.outputs[0] is attention.scores.inputs[0]
    assert edit.shape_of(scale.node.inputs[1]) == ()
    assert ops(model)["Mul"] + ops(model)["Div"] == 1
    assert attention_scale(model).changed == ()


@pytest.mark.parametrize("place", ["s = MatMul (q, kt) z = Mul (s, ones)", "qs = Mul (q, ones) z = MatMul (qs, kt)"])
def test_scale_of_one_is_removed(place: str) -> None:
    model = parse(KT + place + END, ones=np.float32(1))
    apply(model, attention_scale)
    assert ops(model)["Mul"] == 0


def test_canonical_scale_is_not_changed() -> None:
    for text in ("z = MatMul (q, kt)", "qs = Mul (q, third) z = MatMul (qs, kt)"):
        record = apply(parse(KT + text + END, **used(text)), attention_scale)
        assert (record.changed, record.declined) == ((), ())


def test_unscaled_scores_with_another_consumer_are_declined() -> None:
    text = KT + "s = MatMul (q, kt) z = Mul (s, third)" + END
    model = parse(text, outputs="float[1,2,5,4] y, float[1,2,5,7] s", third=np.float32(1 / 3))
    record = apply(model, attention_scale)
    assert record.changed == ()
    assert record.declined[0].what == "the unscaled scores 's' are used elsewhere too"
    assert ops(model)["MatMul"] == 2


def test_scaled_scores_with_another_consumer_keep_their_value() -> None:
    text = KT + "s = MatMul (q, kt) z = Mul (s, third)" + END
    model = parse(text, outputs="float[1,2,5,4] y, float[1,2,5,7] z", third=np.float32(1 / 3))
    record = apply(model, attention_scale)
    assert len(record.changed) == 1


def test_scaled_key_with_another_consumer_keeps_its_scale() -> None:
    text = KT + "ks = Mul (kt, third) z = MatMul (q, ks)" + END
    model = parse(text, outputs="float[1,2,5,4] y, float[1,2,4,7] ks", third=np.float32(1 / 3))
    record = apply(model, attention_scale)
    assert len(record.changed) == 1
    assert ops(model)["Mul"] == 2


def test_scaled_query_with_layout_and_another_consumer_keeps_its_scale() -> None:
    text = KT + MOVED["query before its layout"] + END
    model = parse(text, outputs="float[1,2,5,4] y, float[1,2,5,4] q2", **used(text))
    record = apply(model, attention_scale)
    assert len(record.changed) == 1


def test_scale_per_head_is_declined() -> None:
    text = KT + "s = MatMul (q, kt) z = Mul (s, perhead)" + END
    record = apply(parse(text, **used(text)), attention_scale)
    assert record.declined[0].what == "a scale is not one constant scalar"


def test_scale_after_a_mask_from_the_inputs_is_declined() -> None:
    text = KT + "s = MatMul (q, kt) m = Add (s, bias) z = Mul (m, third)" + END
    inputs = "float[1,2,5,4] q, float[1,2,7,4] k, float[1,2,7,4] v, float[5,7] bias"
    record = apply(parse(text, inputs=inputs, third=np.float32(1 / 3)), attention_scale)
    assert "'bias'" in record.declined[0].what


def test_scale_in_another_type_is_declined() -> None:
    text = """kt = Transpose <perm = [0,1,3,2]> (k) qh = Cast <to = 10> (q) kh = Cast <to = 10> (kt) s = MatMul (qh, kh)
        f = Cast <to = 1> (s) z = Mul (f, third) p = Softmax (z) y = MatMul (p, v)"""
    record = apply(parse(text, third=np.float32(1 / 3)), attention_scale)
    assert "FLOAT16" in record.declined[0].what


def test_scale_before_a_cast_is_declined() -> None:
    text = """kt = Transpose <perm = [0,1,3,2]> (k) qs = Mul (q, third) qh = Cast <to = 10> (qs)
        kh = Cast <to = 10> (kt) s = MatMul (qh, kh) z = Cast <to = 1> (s) p = Softmax (z) y = MatMul (p, v)"""
    record = apply(parse(text, third=np.float32(1 / 3)), attention_scale)
    assert record.declined[0].what == "the scale is applied in FLOAT, but the query is FLOAT16"


def test_scale_of_zero_stays_zero() -> None:
    text = KT + "s = MatMul (q, kt) m = Add (s, mask) z = Mul (m, nothing)" + END
    model = parse(text, mask=MASK, nothing=np.float32(0))
    assert len(apply(model, attention_scale).changed) == 1


def test_scale_of_the_input_of_the_query_projection_stays() -> None:
    """K is the scaled tensor itself; Q is a projection of it, so that scale is not a scale of the query."""
    text = """x = Mul (k, third) q = MatMul (x, weight) kt = Transpose <perm = [0,1,3,2]> (x)
        z = MatMul (q, kt) p = Softmax (z) y = MatMul (p, v)"""
    weight = np.random.default_rng(1).standard_normal((4, 4))
    inputs = "float[1,2,7,4] k, float[1,2,7,4] v"
    model = parse(text, inputs=inputs, outputs="float[1,2,7,4] y", third=np.float32(1 / 3), weight=weight)
    assert len(apply(model, attention_scale).changed) == 1


def test_same_scaled_tensor_as_query_and_key() -> None:
    text = """x = Mul (k, third) kt = Transpose <perm = [0,1,3,2]> (x) z = MatMul (x, kt) p = Softmax (z)
        y = MatMul (p, v)"""
    inputs = "float[1,2,7,4] k, float[1,2,7,4] v"
    model = parse(text, inputs=inputs, outputs="float[1,2,7,4] y", third=np.float32(1 / 3))
    apply(model, attention_scale)
    (attention,) = find_attention(model.graph)
    assert attention.scale == pytest.approx(1 / 9)


def test_two_attentions_that_share_a_scaled_key() -> None:
    text = (
        KT
        + """ks = Mul (kt, third) a = MatMul (q, ks) pa = Softmax (a) b = MatMul (pa, v)
        c = MatMul (b, ks) pc = Softmax (c) y = MatMul (pc, v)"""
    )
    model = parse(text, third=np.float32(1 / 3))
    assert len(apply(model, attention_scale).changed) == 2
    assert ops(model)["Mul"] == 2
