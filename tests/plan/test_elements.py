"""The elements of a plan: everything that it quantizes is in exactly one of them."""

from __future__ import annotations

import pytest

from dovetail.encoding import QParams
from dovetail.float_graph import prepared
from dovetail.model.read import read
from dovetail.plan.constraints import build_problem
from dovetail.plan.elements import Element, ElementKind, elements_of, only
from dovetail.storage import Plan
from dovetail.targets import open_target
from dovetail.zoo import load
from tests.planning import graph, planned

TABLES = [
    ("ort-cpu", "w8a8"),
    ("qnn-htp:sm8550", "w8a16"),
    ("qnn-htp:sm8550", "w8a8"),
    ("tensorrt:sm89", "fp8"),
    ("xnnpack", "w8a8"),
    ("xnnpack", "w8a8-dynamic"),
]


def _elements(body: str, target_name: str = "ort-cpu", precision: str = "w8a8") -> tuple[Plan, tuple[Element, ...]]:
    model, target = graph(body), open_target(target_name)
    plan = planned(model, target, target.table.precisions[precision])
    return plan, elements_of(build_problem(model, target.table), plan)


@pytest.mark.parametrize(("name", "precision"), TABLES)
def test_every_quantized_tensor_and_edge_is_in_one_element(name: str, precision: str) -> None:
    target, shipped = open_target(name), load("vit_digits")
    model = prepared(read(shipped.model_path, {}), target)
    data = {shipped.input_name: shipped.calib()[shipped.input_name][:2, None]}
    plan = planned(model, target, target.table.precisions[precision], data=data)
    elements = elements_of(build_problem(model, target.table), plan)
    tensors = [tensor for element in elements for tensor in element.tensors]
    edges = [edge for element in elements for edge in element.edges]
    assert sorted(tensors) == sorted(n for n, c in plan.tensors.items() if isinstance(c.storage, QParams))
    assert sorted(map(str, edges)) == sorted(str(e) for e, c in plan.edges.items() if isinstance(c.storage, QParams))
    everything = only(plan, elements)
    assert everything.tensors.keys() == set(tensors)
    assert everything.edges.keys() == set(edges)
    if precision == "w8a8-dynamic":
        assert {element.kind for element in elements} == {ElementKind.WEIGHTS}
    if name.startswith("tensorrt"):
        assert not tensors


def test_a_constant_with_two_consumers_is_in_the_elements_of_both() -> None:
    _, elements = _elements(
        """g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1,2,3,4}>
        { a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, w) }"""
    )
    weights = [element for element in elements if element.kind is ElementKind.WEIGHTS]
    assert [len(element.edges) for element in weights] == [1, 1]
    assert weights[0].unit != weights[1].unit


def test_tensors_that_share_a_scale_are_one_element() -> None:
    plan, elements = _elements(
        """g (float[1,4] x) => (float[4] y) <int64[1] s = {4}, float[4,4] w = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}>
        { a = MatMul(x, w)  b = Reshape(a, s)  c = Reshape(b, s)  y = Tanh(c) }"""
    )
    (shared,) = [element for element in elements if "a" in element.tensors]
    assert set(shared.tensors) == {"a", "b", "c"}
    alone = only(plan, [shared])
    assert alone.tensors.keys() == {"a", "b", "c"}
    assert not alone.edges
    assert only(plan, ()).tensors == {}


def test_a_float_model_has_no_elements() -> None:
    _, elements = _elements("g (float[1,2] x) => (float[1,2] y) { y = Tanh(x) }", precision="fp32")
    assert elements == ()
