from __future__ import annotations

import pytest

from dovetail.passes.fuse_layer_norm import fuse_layer_norm
from tests.equality import changed_by, model_from, normal, ops

MEAN = "m = ReduceMean(x, axes) d = Sub(x, m)"
SQUARES = {
    "Pow": f"{MEAN} q = Pow(d, two)",
    "Mul": f"{MEAN} q = Mul(d, d)",
    "twice": f"{MEAN} m2 = ReduceMean(x, axes) d2 = Sub(x, m2) q = Pow(d2, two)",
}
ROOTS = {
    "Div": "v = ReduceMean(q, axes) e = Add(v, eps) r = Sqrt(e) n = Div(d, r)",
    "Reciprocal": "v = ReduceMean(q, axes) e = Add(eps, v) r = Sqrt(e) i = Reciprocal(r) n = Mul(d, i)",
    "one over": "v = ReduceMean(q, axes) e = Add(v, eps) r = Sqrt(e) i = Div(one, r) n = Mul(i, d)",
    "power": "v = ReduceMean(q, axes) e = Add(v, eps) i = Pow(e, minus_half) n = Mul(d, i)",
}
ENDS = {
    "scale and bias": "g1 = Mul(n, gamma) y = Add(g1, beta)",
    "constants first": "g1 = Mul(gamma, n) y = Add(beta, g1)",
    "scale": "y = Mul(n, gamma)",
    "bias": "y = Add(n, beta)",
    "neither": "y = Identity(n)",
}
SCALARS = "<int64[1] axes = {-1}, float two = {2}, float one = {1}, float eps = {0.000001}, float minus_half = {-0.5}>"
AFFINE = {"gamma": normal(8, seed=1), "beta": normal(8, seed=2)}
TORCH = f"{SQUARES['Pow']} {ROOTS['Div']} {ENDS['scale and bias']}"


def _text(body: str, outputs: str = "float[2,5,8] y", scalars: str = SCALARS) -> str:
    return f"g (float[2,5,8] x) => ({outputs}) {scalars} {{ {body} }}"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", SQUARES)
def test_fuses_every_form(square: str, root: str, end: str) -> None:
    model = model_from(_text(f"{SQUARES[square]} {ROOTS[root]} {ENDS[end]}"), **AFFINE)
    after, record = changed_by(fuse_layer_norm, model)
    assert ops(after) == (["LayerNormalization", "Identity"] if end == "neither" else ["LayerNormalization"])
    node = after.graph.node(0)
    assert node.attributes["axis"].value == -1
    assert node.attributes["epsilon"].value == pytest.approx(1e-6)
    assert [value.shape.numpy() for value in node.inputs[1:] if value and value.shape] == [(8,), (8,)]
    assert len(record.changed) == 1


def test_several_last_axes() -> None:
    scalars = SCALARS.replace("int64[1] axes = {-1}", "int64[2] axes = {2, 1}")
    affine = {"gamma": normal(5, 8), "beta": normal(1, 5, 8)}
    after, _ = changed_by(fuse_layer_norm, model_from(_text(TORCH, scalars=scalars), **affine))
    assert ops(after) == ["LayerNormalization"]
    assert after.graph.node(0).attributes["axis"].value == -2


def test_axes_as_an_attribute() -> None:
    body = TORCH.replace("ReduceMean(x, axes)", "ReduceMean<axes=[-1]>(x)").replace(
        "ReduceMean(q, axes)", "ReduceMean<axes=[2]>(q)"
    )
    after, _ = changed_by(fuse_layer_norm, model_from(_text(body), opset=17, **AFFINE))
    assert ops(after) == ["LayerNormalization"]


def test_half_precision_with_casts_around_the_square() -> None:
    body = """m = ReduceMean(x, axes) d = Sub(x, m) w = Cast<to=1>(d) q = Pow(w, two) v = ReduceMean(q, axes)
        e = Add(v, eps) r = Sqrt(e) h = Cast<to=10>(r) n = Div(d, h) g1 = Mul(n, gamma) y = Add(g1, beta)"""
    half = {name: array.astype("float16") for name, array in AFFINE.items()}
    model = model_from(_text(body, "float16[2,5,8] y").replace("float[2,5,8] x", "float16[2,5,8] x"), **half)
    after, _ = changed_by(fuse_layer_norm, model, floor_db=55.0)
    assert ops(after) == ["LayerNormalization"]


def test_inner_tensor_with_a_second_consumer_stays() -> None:
    model = model_from(_text(f"{TORCH} z = Neg(d)", "float[2,5,8] y, float[2,5,8] z"), **AFFINE)
    after, _ = changed_by(fuse_layer_norm, model)
    assert sorted(ops(after)) == ["LayerNormalization", "Neg", "ReduceMean", "Sub"]


def test_normalized_tensor_with_a_second_consumer_is_fused_without_scale() -> None:
    model = model_from(_text(f"{TORCH} z = Neg(n)", "float[2,5,8] y, float[2,5,8] z"), **AFFINE)
    after, _ = changed_by(fuse_layer_norm, model)
    assert sorted(ops(after)) == ["Add", "LayerNormalization", "Mul", "Neg"]


@pytest.mark.parametrize("shape", [(5, 1), (1, 5, 1)], ids=["broadcast", "whole rank"])
def test_channels_in_the_middle_are_transposed_to_the_end(shape: tuple[int, ...]) -> None:
    scalars = SCALARS.replace("{-1}", "{1}")
    model = model_from(_text(TORCH, scalars=scalars), gamma=normal(*shape), beta=normal(*shape, seed=2))
    after, record = changed_by(fuse_layer_norm, model)
    assert ops(after) == ["Transpose", "LayerNormalization", "Transpose"]
    node = after.graph.node(1)
    assert [value.shape.numpy() for value in node.inputs[1:] if value and value.shape] == [(5,), (5,)]
    assert record.changed[0].what == "layer normalization fused, axes [1] transposed to the end"


def test_scale_along_another_axis_is_not_fused() -> None:
    scalars = SCALARS.replace("{-1}", "{1}")
    model = model_from(_text(f"{TORCH} z = Neg(d)", "float[2,5,8] y, float[2,5,8] z", scalars), **AFFINE)
    after, _ = changed_by(fuse_layer_norm, model)
    remaining = sorted(ops(after))
    assert remaining == ["Add", "LayerNormalization", "Mul", "Neg", "ReduceMean", "Sub", "Transpose", "Transpose"]


def test_variance_of_another_tensor_is_not_fused() -> None:
    body = TORCH.replace("Pow(d, two)", "Pow(x, two)")
    model = model_from(_text(body), **AFFINE)
    after, record = changed_by(fuse_layer_norm, model)
    assert ops(after) == ops(model)
    assert not record.changed


def test_exported_operator_is_brought_to_the_canonical_form() -> None:
    model = model_from(_text("y = LayerNormalization<axis=2, stash_type=1>(x, gamma)"), gamma=AFFINE["gamma"])
    after, record = changed_by(fuse_layer_norm, model)
    node = after.graph.node(0)
    assert {name: attr.value for name, attr in node.attributes.items()} == {"axis": -1, "epsilon": pytest.approx(1e-5)}
    assert len(node.inputs) == 3
    assert record.changed[0].what == "attributes made explicit, bias of zeros added"


def test_half_precision_with_casts_around_the_normalization() -> None:
    end = "k = Cast<to=10>(n) g1 = Mul(k, gamma) y = Add(g1, beta)"
    body = f"x = Cast<to=1>(h) {SQUARES['Pow']} {ROOTS['Div']} {end}"
    half = {name: array.astype("float16") for name, array in AFFINE.items()}
    model = model_from(f"g (float16[2,5,8] h) => (float16[2,5,8] y) {SCALARS} {{ {body} }}", **half)
    after, _ = changed_by(fuse_layer_norm, model, floor_db=60.0)
    assert ops(after) == ["LayerNormalization"]


def test_scale_of_a_higher_rank_is_not_fused() -> None:
    model = model_from(_text(TORCH, "float[1,2,5,8] y"), gamma=normal(1, 1, 1, 8), beta=normal(8))
    after, _ = changed_by(fuse_layer_norm, model)
    assert ops(after) == ["LayerNormalization", "Mul", "Add"]
