from __future__ import annotations

import numpy as np
import pytest

from dovetail.passes.remove_noops import remove_noops
from tests.equality import changed_by, model_from, normal, ops

NOOPS = {
    "Identity": "b = Identity(a)",
    "Dropout": "b = Dropout(a)",
    "Dropout with inputs": "b = Dropout(a, half, no)",
    "Cast": "b = Cast<to=1>(a)",
    "Cast to a wider type and back": "w = Cast<to=11>(a) b = Cast<to=1>(w)",
    "Reshape": "b = Reshape(a, shape)",
    "Transpose": "b = Transpose<perm=[0,1,2]>(a)",
    "Expand": "b = Expand(a, shape)",
    "Concat": "b = Concat<axis=1>(a)",
    "Sum": "b = Sum(a)",
    "Max": "b = Max(a)",
    "Slice": "b = Slice(a, begin, end)",
    "Pad": "b = Pad(a, no_pads)",
    "Split": "b = Split<num_outputs=1>(a)",
    "Add zero": "b = Add(a, zero)",
    "zero Add": "b = Add(zeros, a)",
    "Sub zero": "b = Sub(a, zeros)",
    "Mul one": "b = Mul(one, a)",
    "Div one": "b = Div(a, one)",
    "Pow one": "b = Pow(a, one)",
    "Where always true": "b = Where(yes, a, zero)",
    "Where never true": "b = Where(no, zero, a)",
}
OTHERS = {
    "training Dropout": "b = Dropout<seed=1>(a, half, yes)",
    "Cast": "w = Cast<to=10>(a) b = Cast<to=1>(w)",
    "Transpose": "b = Transpose<perm=[0,2,1]>(a)",
    "backwards Slice": "b = Slice(a, last, before, axis, back)",
    "Pad": "b = Pad(a, pads)",
    "Add that broadcasts": "b = Add(a, many_zeros)",
    "zero Sub": "b = Sub(zero, a)",
    "one Div": "b = Div(one, a)",
    "Mul two": "b = Mul(a, two)",
    "Where that selects both": "b = Where(some, zero, a)",
    "Where that broadcasts": "b = Where(yes, a, many_zeros)",
}
CONSTANTS = """<int64[3] shape = {2,3,3}, float half = {0.5}, bool no = {0}, bool yes = {1}, bool[3] some = {0,1,0},
    float zero = {0}, float one = {1}, float two = {2}, int64[1] begin = {0}, int64[1] end = {9}, int64[1] last = {-1},
    int64[1] before = {-9}, int64[1] axis = {1}, int64[1] back = {-1}, int64[6] no_pads = {0,0,0,0,0,0},
    int64[6] pads = {0,0,1,0,0,-1}>"""
ZEROS = {"zeros": np.zeros((3, 3), np.float32), "many_zeros": np.zeros((4, 1, 3, 3), np.float32)}


@pytest.mark.parametrize("case", NOOPS)
def test_removes_nodes_without_effect(case: str) -> None:
    text = f"g (float[2,3,3] x) => (float[2,3,3] y) {CONSTANTS} {{ a = Neg(x) {NOOPS[case]} y = Abs(b) }}"
    after, record = changed_by(remove_noops, model_from(text, **ZEROS))
    assert ops(after) == ["Neg", "Abs"]
    assert record.changed[-1].where == "b"


@pytest.mark.parametrize("case", OTHERS)
def test_keeps_nodes_with_an_effect(case: str) -> None:
    model = model_from(
        f"g (float[2,3,3] x) => (float[A,B,C] y) {CONSTANTS} {{ a = Neg(x) {OTHERS[case]} y = Abs(b) }}", **ZEROS
    )
    record = remove_noops(model)
    assert not record.changed


def test_second_consumer_of_the_input() -> None:
    text = "g (float[3] x) => (float[3] y, float[3] z) { a = Neg(x) b = Identity(a) y = Abs(b) z = Exp(a) }"
    after, _ = changed_by(remove_noops, model_from(text))
    assert ops(after) == ["Neg", "Abs", "Exp"]


def test_input_takes_over_the_name_of_the_graph_output() -> None:
    after, _ = changed_by(remove_noops, model_from("g (float[3] x) => (float[3] y) { a = Neg(x) y = Dropout(a) }"))
    assert ops(after) == ["Neg"]


def test_removed_names_become_aliases() -> None:
    from dovetail.model.origin import origin_of

    text = "g (float[3] x) => (float[3] y) { a = Neg(x) b = Identity(a) y = Abs(b) }"
    after, _ = changed_by(remove_noops, model_from(text))
    assert origin_of(after.graph.node(0).outputs[0]).names == ("a", "b")


@pytest.mark.parametrize("body", ["y = Identity(x) z = Neg(x)", "y = Neg(x) z = Identity(y)"])
def test_identity_of_an_input_or_output_stays_for_its_name(body: str) -> None:
    model = model_from(f"g (float[3] x) => (float[3] y, float[3] z) {{ {body} }}")
    after, record = changed_by(remove_noops, model)
    assert ops(after) == ops(model)
    assert not record.changed


def test_other_noop_of_an_input_is_declined() -> None:
    _, record = changed_by(remove_noops, model_from("g (float[3] x) => (float[3] y) { y = Dropout(x) }"))
    assert "the name of this graph output" in record.declined[0].what


def test_dropout_whose_mask_is_used_is_declined() -> None:
    text = "g (float[3] x) => (float[3] y, bool[3] m) { a = Neg(x) b, m = Dropout(a) y = Abs(b) }"
    after, record = changed_by(remove_noops, model_from(text))
    assert ops(after) == ["Neg", "Dropout", "Abs"]
    assert record.declined[0].what == "another output of the Dropout is used"


def test_unknown_shape_is_kept() -> None:
    model = model_from("g (float[N,3] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }")
    assert not remove_noops(model).changed


def test_gamma_of_ones_is_removed() -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { a = Neg(x) b = Mul(a, k) y = Add(b, w) }"
    after, _ = changed_by(remove_noops, model_from(text, k=np.ones(3, np.float32), w=normal(3)))
    assert ops(after) == ["Neg", "Add"]
