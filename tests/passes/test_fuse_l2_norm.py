"""A division by the norm as LpNormalization."""

from __future__ import annotations

import pytest

from dovetail.passes.fuse_l2_norm import fuse_l2_norm
from tests.equality import changed_by, model_from, ops

INPUTS = """g (float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z)
<int64[1] last = {-1}, int64[1] middle = {1}, int64[2] both = {1,2}, int64[3] full = {2,3,4}, float e = {1e-12},
 float large = {0.5}, float two = {2.0}, float three = {3.0}>"""
NORM = "n = ReduceL2(a, last)"


def text(nodes: str) -> str:
    return f"{INPUTS} {{ a = Neg(x) z = Relu(a) {nodes} }}"


@pytest.mark.parametrize(
    ("nodes", "axis"),
    [
        (f"{NORM} c = Clip(n, e) b = Expand(c, full) y = Div(a, b)", 2),
        (f"{NORM} c = Max(n, e) y = Div(a, c)", 2),
        (f"{NORM} c = Add(n, e) y = Div(a, c)", 2),
        ("n = ReduceL2(a, middle) y = Div(a, n)", 1),
        ("q = Mul(a, a) s = ReduceSum(q, last) n = Sqrt(s) c = Clip(n, e) y = Div(a, c)", 2),
        ("q = Pow(a, two) s = ReduceSum(q, middle) n = Sqrt(s) y = Div(a, n)", 1),
    ],
)
def test_every_way_to_write_it_with_a_second_consumer_of_the_input(nodes: str, axis: int) -> None:
    after, record = changed_by(fuse_l2_norm, model_from(text(nodes)))
    assert sorted(ops(after)) == ["LpNormalization", "Neg", "Relu"]
    node = next(node for node in after.graph if node.op_type == "LpNormalization")
    assert node.attributes["axis"].value == axis
    assert [site.where for site in record.changed] == ["y"]


def test_a_norm_with_a_second_consumer_is_kept_for_it() -> None:
    after, _ = changed_by(fuse_l2_norm, model_from(text(f"{NORM} w = Relu(n) y1 = Div(a, n) y = Add(y1, w)")))
    assert {"LpNormalization", "ReduceL2"} <= set(ops(after))


@pytest.mark.parametrize(
    "nodes",
    [
        f"{NORM} y = Div(z, n)",  # the norm of another tensor
        f"{NORM} c = Clip(n, large) y = Div(a, c)",  # not a small bound
        f"{NORM} c = Clip(n,, e) y = Div(a, c)",  # an upper bound
        f"{NORM} c = Clip(n, e, large) y = Div(a, c)",
        f"{NORM} y = Div(n, a)",
        "n = ReduceL2(a, both) y = Div(a, n)",
        "n = ReduceL1(a, last) y = Div(a, n)",
        "q = Mul(a, z) s = ReduceSum(q, last) n = Sqrt(s) c = Max(n, e) y = Div(a, c)",
        "q = Pow(a, three) s = ReduceSum(q, last) t = Abs(s) n = Sqrt(t) y = Div(a, n)",
    ],
)
def test_other_divisions_are_not_changed(nodes: str) -> None:
    model = model_from(text(nodes))
    before = ops(model)
    record = fuse_l2_norm(model)
    assert not record.changed
    assert ops(model) == before
