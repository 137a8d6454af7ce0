from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model import edit
from dovetail.model.origin import origin_of
from tests.equality import Array, model_from, normal, ops


def _value(model: ir.Model, name: str) -> ir.Value:
    return next(value for node in model.graph for value in node.outputs if value.name == name)


def test_new_value_takes_over_name_and_origin() -> None:
    model = model_from("g (float[3] x) => (float[3] y) { a = Neg(x) y = Abs(a) }")
    old = _value(model, "a")
    node = model.graph.node(0)
    new = edit.insert(node, "Exp", [model.graph.inputs[0]], source=old, replaces=[node])
    assert not origin_of(new).exact
    edit.replace_value(old, new)
    edit.remove_dead(model.graph, [node])
    assert ops(model) == ["Exp", "Abs"]
    assert new.name == "a"
    assert origin_of(new).exact


def test_inner_value_takes_the_name_of_a_graph_output() -> None:
    model = model_from("g (float[3] x) => (float[3] y) { a = Neg(x) y = Identity(a) }")
    edit.replace_value(_value(model, "y"), _value(model, "a"))
    edit.remove_dead(model.graph, [model.graph.node(1)])
    assert ops(model) == ["Neg"]
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert origin_of(model.graph.outputs[0]).names == ("y", "a")


@pytest.mark.parametrize("kept", ["input", "other output"])
def test_output_that_equals_an_input_or_output_gets_an_identity(kept: str) -> None:
    model = model_from("g (float[3] x) => (float[3] y, float[3] z) { y = Neg(x) z = Abs(y) }")
    new = model.graph.inputs[0] if kept == "input" else model.graph.outputs[0]
    node = model.graph.node(1)
    edit.replace_value(_value(model, "z"), new)
    edit.remove_dead(model.graph, [node])
    assert ops(model) == ["Neg", "Identity"]
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_folded_value_keeps_name_and_origin() -> None:
    model = model_from("g (float[3] x) => (float[3] y) { a = Neg(k) y = Add(x, a) }", k=normal(3))
    edit.fold(_value(model, "a"), ir.Tensor(normal(3)))
    constant = model.graph.node(1).inputs[1]
    assert constant is not None
    assert constant.name == "a"
    assert origin_of(constant).exact


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("k = Constant<value = float[2] {1, 2}>()", [1.0, 2.0]),
        ("k = Constant<value_float = 1.5>()", 1.5),
        ("k = Constant<value_ints = [1, 2]>()", [1, 2]),
        ('k = Constant<value_string = "text">()', None),
        ("k = Neg(x)", None),
    ],
)
def test_constant_of_a_node(body: str, expected: object) -> None:
    model = model_from(f"g (float[3] x) => (float[3] y) {{ {body} y = Neg(x) }}")
    array: Array | None = edit.constant_of(_value(model, "k"))
    assert (None if array is None else array.tolist()) == expected


def test_reading_a_constant_changes_nothing() -> None:
    model = model_from("g (float[3] x) => (float[3] y) { k = Constant<value = float[3] {1, 2, 3}>() y = Add(x, k) }")
    before = ir.to_proto(model).SerializeToString()
    edit.constant_of(_value(model, "k"))
    assert ir.to_proto(model).SerializeToString() == before


def test_names_are_unique_and_scalars_stay_scalars() -> None:
    model = model_from("g (float[3] x) => (float[3] y) { y = Neg(x) }")
    values = [edit.add_initializer(model.graph, np.float32(1), name="y", source=model.graph.inputs[0]) for _ in "ab"]
    assert [value.name for value in values] == ["y.1", "y.2"]
    assert [edit.shape_of(value) for value in values] == [(), ()]


def test_constant_is_a_copy() -> None:
    model = model_from("g (float[3] x) => (float[3] y) { y = Neg(x) }")
    array = normal(3)
    value = edit.add_initializer(model.graph, array, name="k", source=model.graph.inputs[0])
    kept = array.copy()
    array[:] = 0
    np.testing.assert_array_equal(edit.constant_of(value), kept)


@pytest.mark.parametrize(
    ("node", "rank", "axis"),
    [
        ("Conv(x, w)", 4, 1),
        ("ConvTranspose(x, w)", 4, 0),
        ("Gemm(x, w)", 2, 0),
        ("Gemm<transB=1>(x, w)", 2, 1),
        ("MatMul(x, w)", 1, 0),
        ("MatMul(x, w)", 2, 0),
        ("MatMul(x, w)", 3, 1),
    ],
)
def test_the_axis_of_the_input_channels_of_a_weight(node: str, rank: int, axis: int) -> None:
    sizes = ",".join("4" * rank)
    (linear,) = model_from(f"g (float[{sizes}] x, float[{sizes}] w) => (float[a] y) {{ y = {node} }}").graph
    assert edit.input_axis(linear, rank) == axis
