"""The cleanup passes: shapes, branches, shared constants, unused values."""

from __future__ import annotations

import numpy as np

from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.inline_branches import inline_branches
from dovetail.passes.remove_unused import remove_unused
from dovetail.passes.unshare_constants import unshare_constants
from tests.equality import changed_by, model_from, normal, ops

BRANCH = """g (float[1,4] x) => (float[N] y) <int64[1] axes = {0}, bool c = {VALUE}>
    { t = Neg(x)
      s = If(c) <then_branch = a () => (float[4] z)
                   { k = Constant<value_float = 2.0>() q = Squeeze(t, axes) z = Mul(q, k) },
                 else_branch = b () => (float[4] z) { z = Squeeze(t, axes) }>
      y = Abs(s) }"""


def test_weights_shared_by_layers_are_copied() -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { a = MatMul(x, w) y = MatMul(a, w) }"
    after, record = changed_by(unshare_constants, model_from(text, w=normal(3, 3)))
    first, second = (node.inputs[1] for node in after.graph)
    assert first is not None
    assert second is not None
    assert first is not second
    assert origin_of(second).name == "w"
    assert origin_of(second).exact
    assert record.changed[0].what == "copied for 2 kinds of consumers"


def test_table_that_is_also_a_weight_is_copied() -> None:
    text = "g (int64[2] i, float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Gather(w, i) z = MatMul(x, w) }"
    after, _ = changed_by(unshare_constants, model_from(text, w=normal(3, 3)))
    assert len(after.graph.initializers) == 2


def test_mask_scalar_and_shape_stay_shared() -> None:
    text = """g (float[6,6] x) => (float[36] y, float[36] z) <float k = {2}, int64[1] s = {36}>
        { a = Add(x, m) b = Add(a, m) c = Mul(b, k) d = Sub(c, k) y = Reshape(c, s) z = Reshape(d, s) }"""
    after, record = changed_by(unshare_constants, model_from(text, m=normal(6, 6)))
    assert set(after.graph.initializers) == {"m", "k", "s"}
    assert not record.changed


def test_selected_branch_is_inlined() -> None:
    for value, remaining in ((1, ["Neg", "Constant", "Squeeze", "Mul", "Abs"]), (0, ["Neg", "Squeeze", "Abs"])):
        after, record = changed_by(inline_branches, model_from(BRANCH.replace("VALUE", str(value))))
        assert ops(after) == remaining
        assert len(record.changed) == 1


def test_branches_with_the_same_names_are_inlined_side_by_side() -> None:
    branch = "then_branch = a () => (float[3] z) { k = Constant<value_float = 2.0>() z = Mul(x, k) }"
    other = branch.replace("then", "else").replace("2.0", "3.0")
    text = f"""g (float[3] x) => (float[3] y) <bool c = {{1}}, bool d = {{0}}>
        {{ p = If(c) <{branch}, {other}> q = If(d) <{branch}, {other}> y = Add(p, q) }}"""
    after, _ = changed_by(inline_branches, model_from(text))
    assert ops(after) == ["Constant", "Mul", "Constant", "Mul", "Add"]


def test_branch_that_returns_an_outer_tensor() -> None:
    text = """g (float[3] x) => (float[3] y) <bool c = {1}>
        { t = Neg(x) y = If(c) <then_branch = a () => (float[3] z) { z = Identity(t) },
                                else_branch = b () => (float[3] z) { z = Abs(t) }> }"""
    after, _ = changed_by(inline_branches, model_from(text))
    assert ops(after) == ["Neg", "Identity"]


def test_branch_selected_by_an_input_is_declined() -> None:
    text = BRANCH.replace("float[1,4] x", "float[1,4] x, bool c").replace(", bool c = {VALUE}", "")
    record = inline_branches(model_from(text))
    assert "depends on the inputs" in record.declined[0].what


def test_shapes_are_inferred_from_the_inputs_alone() -> None:
    model = model_from("g (float[2,3] x) => (float[A,B] y) <float[9,9] n> { n = Neg(x) y = Abs(n) }")
    assert shape_of(model.graph.node(0).outputs[0]) == (2, 3)
    assert shape_of(model.graph.outputs[0]) == (2, 3)


def test_recorded_shape_after_a_contrib_operator_is_kept() -> None:
    text = "g (float[2,3] x) => (float[2,3] y) <float[2,3] q> { q = com.microsoft.QuickGelu(x) y = Abs(q) }"
    model = model_from(text)
    assert shape_of(model.graph.node(0).outputs[0]) == (2, 3)
    assert not infer_shapes(model).declined


def test_shape_that_depends_on_data_is_declined() -> None:
    model = model_from("g (float[2,3] x) => (int64[A,B] y) { y = NonZero(x) }")
    record = infer_shapes(model)
    assert [site.where for site in record.declined] == ["y"]
    assert "depends on data" in record.declined[0].what


def test_shape_mismatch_is_in_the_reason() -> None:
    model = model_from("g (float[2,3] x) => (float[A,B] y) { y = MatMul(x, w) }", w=normal(4, 5))
    assert "Incompatible dimensions" in infer_shapes(model).declined[0].what


def test_unused_is_removed() -> None:
    text = "g (float[3] x) => (float[3] y) <float[3] dead = {1,2,3}> { u = Neg(x) v = Exp(u) y, m = Dropout(x) }"
    after, record = changed_by(remove_unused, model_from(text))
    assert ops(after) == ["Dropout"]
    assert not after.graph.initializers
    assert {site.where for site in record.changed} == {"dead", "u", "v", "m"}


def test_nothing_to_remove() -> None:
    model = model_from("g (float[3] x) => (float[3] y) { y = Add(x, k) }", k=np.float32([1, 2, 3]))
    assert not remove_unused(model).changed


def test_constants_of_a_branch_are_inlined_too() -> None:
    branch = "then_branch = a () => (float[3] z) <float[3] k = {1, 2, 3}> { z = Mul(x, k) }"
    text = f"""g (float[3] x) => (float[3] y) <bool c = {{1}}>
        {{ p = If(c) <{branch}, {branch.replace("then", "else")}> q = If(c) <{branch}, {branch.replace("then", "else")}>
           y = Add(p, q) }}"""
    after, _ = changed_by(inline_branches, model_from(text))
    assert ops(after) == ["Mul", "Mul", "Add"]
    assert {origin_of(value).name for value in after.graph.initializers.values()} == {"c", "k"}
