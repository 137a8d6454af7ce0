"""The passes that merge consecutive reshapes and transposes, and duplicate nodes."""

from __future__ import annotations

import pytest

from dovetail.passes.merge_duplicates import merge_duplicates
from dovetail.passes.merge_layout import merge_layout
from tests.equality import changed_by, model_from, normal, ops

EXACT_DB = 250.0
SHAPES = "<int64[2] flat = {6,20}, int64[3] heads = {6,4,5}, int64[4] turned = {2,3,5,4}, int64[4] other = {2,3,4,5}>"
MERGED = {
    "two reshapes": ("a = Reshape(x, flat) b = Reshape(a, heads)", ["Reshape"]),
    "reshape and back": ("a = Reshape(x, flat) b = Reshape(a, other)", []),
    "two transposes": ("a = Transpose<perm=[0,2,1,3]>(x) b = Transpose<perm=[0,2,3,1]>(a)", ["Transpose"]),
    "transpose and back": ("a = Transpose<perm=[1,2,3,0]>(x) b = Transpose<perm=[3,0,1,2]>(a)", []),
    "default transposes": ("a = Transpose(x) b = Transpose(a)", []),
    "three": ("h = Reshape(x, heads) t = Transpose<perm=[0,2,1]>(h) b = Reshape(t, turned)", ["Transpose"]),
}


@pytest.mark.parametrize("case", MERGED)
def test_layout_nodes_are_merged(case: str) -> None:
    body, remaining = MERGED[case]
    model = model_from(f"g (float[2,3,4,5] i) => (float[A,B,C,D] y) {SHAPES} {{ x = Neg(i) {body} y = Abs(b) }}")
    after, record = changed_by(merge_layout, model, EXACT_DB)
    assert ops(after) == ["Neg", *remaining, "Abs"]
    assert record.changed[0].where == "b"


def test_first_node_stays_for_its_second_consumer() -> None:
    text = f"""g (float[2,3,4,5] x) => (float[6,4,5] y, float[6,20] z) {SHAPES}
        {{ a = Reshape(x, flat) y = Reshape(a, heads) z = Neg(a) }}"""
    after, _ = changed_by(merge_layout, model_from(text), EXACT_DB)
    assert sorted(ops(after)) == ["Neg", "Reshape", "Reshape"]
    assert all(node.inputs[0] is after.graph.inputs[0] for node in after.graph if node.op_type == "Reshape")


def test_chain_that_needs_two_nodes_stays() -> None:
    text = (
        f"g (float[2,3,4,5] x) => (float[6,20] y) {SHAPES} {{ a = Transpose<perm=[0,2,1,3]>(x) y = Reshape(a, flat) }}"
    )
    after, record = changed_by(merge_layout, model_from(text), EXACT_DB)
    assert ops(after) == ["Transpose", "Reshape"]
    assert not record.changed


def test_duplicate_nodes_are_merged() -> None:
    text = """g (float[2,3] x) => (float[3,2] y) <int64[2] s1 = {3,2}, int64[2] s2 = {3,2}>
        { a = Reshape(x, s1) b = Reshape(x, s2) c = Neg(a) d = Neg(b) y = Add(c, d) }"""
    after, record = changed_by(merge_duplicates, model_from(text), EXACT_DB)
    assert ops(after) == ["Reshape", "Neg", "Add"]
    assert [site.where for site in record.changed] == ["b", "d"]


@pytest.mark.parametrize(
    "body",
    [
        "a = Softmax<axis=0>(x) b = Softmax<axis=1>(x)",
        "a = MatMul(x, w) b = MatMul(x, v)",
        "a = Sub(x, w) b = Sub(w, x)",
        "a = RandomNormalLike(x) b = RandomNormalLike(x)",
    ],
)
def test_different_nodes_are_not_merged(body: str) -> None:
    model = model_from(
        f"g (float[20,20] x) => (float[20,20] y) {{ {body} y = Add(a, b) }}", w=normal(20, 20), v=normal(20, 20)
    )
    assert not merge_duplicates(model).changed


def test_duplicate_graph_output_stays() -> None:
    model = model_from("g (float[3] x) => (float[3] y, float[3] z) { y = Neg(x) z = Neg(x) }")
    after, record = changed_by(merge_duplicates, model)
    assert ops(after) == ["Neg", "Neg"]
    assert not record.changed
