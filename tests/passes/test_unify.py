"""The passes that unify how things are written: arithmetic, casts, linear layers, reshapes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model.edit import constant_of, shape_of
from dovetail.passes.unify_arithmetic import unify_arithmetic
from dovetail.passes.unify_casts import unify_casts
from dovetail.passes.unify_linear import unify_linear
from dovetail.passes.unify_reshapes import unify_reshapes
from tests.equality import changed_by, model_from, normal, ops

EXACT_DB = 250.0


def _operand(model: ir.Model, node: int = 0) -> np.ndarray:
    array = constant_of(model.graph.node(node).inputs[1])
    assert array is not None
    return array


@pytest.mark.parametrize(
    ("body", "op", "constant"),
    [
        ("y = Add(k, x)", "Add", [1, 2, 4]),
        ("y = Mul(k, x)", "Mul", [1, 2, 4]),
        ("y = Sub(x, k)", "Add", [-1, -2, -4]),
        ("y = Div(x, k)", "Mul", [1, 0.5, 0.25]),
    ],
)
def test_constant_comes_second_in_add_and_mul(body: str, op: str, constant: list[float]) -> None:
    model = model_from(f"g (float[2,3] x) => (float[2,3] y) {{ {body} }}", k=np.float32([1, 2, 4]))
    after, record = changed_by(unify_arithmetic, model, EXACT_DB)
    assert ops(after) == [op]
    assert _operand(after).tolist() == constant
    assert len(record.changed) == 1


@pytest.mark.parametrize("body", ["y = Sub(k, x)", "y = Div(k, x)", "y = Div(x, k)", "y = Add(x, z)"])
def test_inexact_or_non_constant_arithmetic_stays(body: str) -> None:
    model = model_from(f"g (float[3] x, float[3] z) => (float[3] y) {{ {body} }}", k=np.float32([3, 5, 7]))
    after, record = changed_by(unify_arithmetic, model, EXACT_DB)
    assert ops(after) == ops(model)
    assert not record.changed


@pytest.mark.parametrize("divisor", [1e-40, 2.0**127])
def test_reciprocal_outside_the_normal_range_stays(divisor: float) -> None:
    model = model_from("g (float[1] x) => (float[1] y) { y = Div(x, k) }", k=np.float32(divisor))
    record = unify_arithmetic(model)
    assert not record.changed


def test_integer_division_stays() -> None:
    model = model_from("g (int64[3] x) => (int64[3] y) <int64 k = {2}> { y = Div(x, k) }")
    assert not unify_arithmetic(model).changed


@pytest.mark.parametrize(
    ("shape", "lower"),
    [
        ((1, 1, 4), (4,)),
        ((1, 4), (4,)),
        ((1,), ()),
        ((1, 1), ()),
        ((4,), (4,)),
        ((3, 1), (3, 1)),
        ((1, 3, 4), (1, 3, 4)),
    ],
)
def test_constant_has_its_lowest_rank(shape: tuple[int, ...], lower: tuple[int, ...]) -> None:
    model = model_from("g (float[2,3,4] x) => (float[2,3,4] y) { y = Add(x, k) }", k=normal(*shape))
    after, _ = changed_by(unify_arithmetic, model, EXACT_DB)
    assert _operand(after).shape == lower


def test_rank_that_the_result_needs_stays() -> None:
    model = model_from("g (float[4] x) => (float[1,1,4] y) { y = Add(x, k) }", k=normal(1, 1, 4))
    after, record = changed_by(unify_arithmetic, model)
    assert _operand(after).shape == (1, 1, 4)
    assert not record.changed


def test_second_consumer_of_the_constant_is_not_changed() -> None:
    text = "g (float[3] x) => (float[3] y, float[3] z) { y = Sub(x, k) z = Mul(x, k) }"
    after, _ = changed_by(unify_arithmetic, model_from(text, k=normal(3)), EXACT_DB)
    assert ops(after) == ["Add", "Mul"]


@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (1,), (), (2, 1), (2, 5)])
@pytest.mark.parametrize("attributes", ["", "transB=1", "transA=1", "alpha=0.5, beta=2.0, transB=1"])
def test_gemm_becomes_matmul_and_add(attributes: str, bias: tuple[int, ...] | None) -> None:
    rows = "3,2" if "transA" in attributes else "2,3"
    text = f"""g (float[{rows}] x) => (float[2,5] y)
        {{ y = Gemm{f"<{attributes}>" if attributes else ""}(x, w{", b" if bias is not None else ""}) }}"""
    constants = {"w": normal(*((5, 3) if "transB" in attributes else (3, 5)))}
    if bias is not None:
        constants["b"] = normal(*bias, seed=1)
    after, record = changed_by(unify_linear, model_from(text, **constants))
    transposes = ["Transpose"] if "transA" in attributes else []
    assert ops(after) == [*transposes, "MatMul", *([] if bias is None else ["Add"])]
    assert _operand(after, len(transposes)).shape == (3, 5)
    if bias is not None and bias not in ((2, 1), (2, 5)):
        assert _operand(after, len(transposes) + 1).shape == (5,)
    assert len(record.changed) == 1


def test_gemm_that_adds_an_activation() -> None:
    text = "g (float[2,3] x, float[2,5] c) => (float[2,5] y) { y = Gemm<beta=0.5>(x, w, c) }"
    after, _ = changed_by(unify_linear, model_from(text, w=normal(3, 5)))
    assert ops(after) == ["MatMul", "Mul", "Add"]


def test_gemm_whose_weight_and_input_have_other_consumers() -> None:
    text = """g (float[2,3] x) => (float[2,5] y, float[5,3] z, float[2,3] u)
        { y = Gemm<transB=1>(x, w) z = Neg(w) u = Neg(x) }"""
    after, _ = changed_by(unify_linear, model_from(text, w=normal(5, 3)))
    assert ops(after) == ["MatMul", "Neg", "Neg"]


def test_gemm_of_two_activations_is_declined() -> None:
    model = model_from("g (float[2,3] x, float[3,5] w) => (float[2,5] y) { y = Gemm(x, w) }")
    after, record = changed_by(unify_linear, model)
    assert ops(after) == ["Gemm"]
    assert record.declined[0].where == "y"


@pytest.mark.parametrize(
    "body",
    [
        "y = Squeeze(x, axes)",
        "y = Squeeze(x)",
        "y = Reshape<allowzero=1>(x, plain)",
        "y = Reshape(x, lazy)",
        "t = Unsqueeze(x, axes) y = Reshape(t, plain)",
        "t = Flatten<axis=2>(x) y = Reshape(t, plain)",
    ],
)
def test_every_change_of_shape_becomes_a_reshape_to_explicit_sizes(body: str) -> None:
    text = f"""g (float[1,3,4] x) => (float[3,4] y)
        <int64[1] axes = {{0}}, int64[2] plain = {{3,4}}, int64[2] lazy = {{3,-1}}> {{ {body} }}"""
    after, record = changed_by(unify_reshapes, model_from(text), EXACT_DB)
    assert set(ops(after)) == {"Reshape"}
    last = after.graph.node(-1)
    assert not last.attributes
    assert tuple(_operand(after, -1)) == shape_of(last.outputs[0]) == (3, 4)
    assert record.changed


def test_shared_shape_constant_is_copied() -> None:
    text = """g (float[12] x) => (float[3,4] y, float[3,4] z) <int64[2] plain = {3,4}>
        { y = Reshape(x, plain) n = Neg(x) z = Reshape(n, plain) }"""
    after, _ = changed_by(unify_reshapes, model_from(text), EXACT_DB)
    assert after.graph.node(0).inputs[1] is not after.graph.node(2).inputs[1]
    assert not unify_reshapes(after).changed


def test_reshape_to_an_unknown_shape_is_declined() -> None:
    model = model_from("g (float[12] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }")
    assert len(unify_reshapes(model).declined) == 1


def test_castlike_becomes_a_cast() -> None:
    text = "g (float16[3] x) => (float16[3] y, float[3] z) { c = CastLike(k, x) y = Mul(x, c) z = Neg(k) }"
    after, record = changed_by(unify_casts, model_from(text, k=normal(3)), EXACT_DB)
    assert ops(after) == ["Cast", "Mul", "Neg"]
    assert record.changed[0].what == "CastLike rewritten as Cast to float16"


def test_castlike_to_an_unknown_type_is_declined() -> None:
    model = model_from("g (float[3] x, float[3] t) => (float[3] y) { y = CastLike(x, t) }")
    model.graph.inputs[1].type = None
    assert len(unify_casts(model).declined) == 1
