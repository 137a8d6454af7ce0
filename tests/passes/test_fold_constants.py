from __future__ import annotations

import numpy as np
import pytest

from dovetail.model import edit
from dovetail.passes import fold_constants as module
from dovetail.passes.fold_constants import fold_constants
from tests.equality import changed_by, model_from, normal, ops


def test_folds_shape_arithmetic_and_the_shapes_behind_it() -> None:
    text = """g (float[2,3,4] x) => (float[N,M] y, float[K] z)
        <int64 zero = {0}, int64[1] minus = {-1}, int64[1] ax = {0}>
        { s = Shape(x) b = Gather(s, zero) u = Unsqueeze(b, ax) t = Concat<axis=0>(u, minus) r = Reshape(x, t)
          s2 = Shape(r) y = Reshape(r, s2) z = Reshape(r, minus) }"""
    after, _ = changed_by(fold_constants, model_from(text))
    assert ops(after) == ["Reshape", "Reshape", "Reshape"]
    assert edit.shape_of(after.graph.outputs[0]) == (2, 12)


def test_folds_a_large_mask_wholly() -> None:
    text = """g (float[1,197,197] x) => (float[1,197,197] y)
        <int64[2] shape = {197, 197}, int64 one = {1}, float low = {-1000}, float zero = {0},
         int64 begin = {0}, int64 end = {197}, int64[1] ax = {1}>
        { ones = ConstantOfShape<value = int64[1] {1}>(shape) r = Range(begin, end, one) c = Unsqueeze(r, ax)
          e = Expand(c, shape) k = GreaterOrEqual(e, r) o = Equal(ones, one) b = And(k, o) m = Where(b, zero, low)
          y = Add(x, m) }"""
    after, record = changed_by(fold_constants, model_from(text))
    assert ops(after) == ["Add"]
    assert set(after.graph.initializers) == {"m"}
    assert not record.declined


def test_constant_nodes_become_initializers_of_the_same_name() -> None:
    text = "g (float[3] x) => (float[3] y) { k = Constant<value_floats=[1.0, 2.0, 3.0]>() y = Add(x, k) }"
    after, _ = changed_by(fold_constants, model_from(text))
    assert list(after.graph.initializers) == ["k"]


def test_part_of_a_shape() -> None:
    text = """g (float[2,3,4] x) => (float[2,3,4] y, int64 n)
        { s = Shape<start=-2, end=3>(x) c = Cast<to=1>(s) f = ReduceSum<keepdims=0>(c) y = Mul(x, f) n = Size(x) }"""
    after, _ = changed_by(fold_constants, model_from(text))
    assert ops(after) == ["Mul", "Size"]  # an output of the graph stays computed


def test_folded_tensor_with_several_readers() -> None:
    text = "g (float[3] x) => (float[3] y, float[3] z) { a = Neg(k) y = Add(x, a) z = Mul(x, a) }"
    after, _ = changed_by(fold_constants, model_from(text, k=normal(3)))
    assert ops(after) == ["Add", "Mul"]


def test_several_outputs() -> None:
    text = "g (float[3] x) => (float[3] y) { a, b = Split<num_outputs=2, axis=0>(k) c = Add(a, b) y = Add(x, c) }"
    after, _ = changed_by(fold_constants, model_from(text, k=normal(6)))
    assert ops(after) == ["Add"]


def test_result_that_is_much_larger_than_its_source_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GROWTH_LIMIT_BYTES", 1000)
    text = "g (float[1] x) => (float[100,100] y) <int64[2] shape = {100, 100}> { e = Expand(k, shape) y = Add(x, e) }"
    after, record = changed_by(fold_constants, model_from(text, k=normal(1, 1)))
    assert ops(after) == ["Expand", "Add"]
    assert record.declined[0].what == "the result would have 40000 bytes, from 20"


def test_weight_is_transposed_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GROWTH_LIMIT_BYTES", 0)
    text = "g (float[1,3] x) => (float[1,4] y) { t = Transpose<perm=[1,0]>(w) y = MatMul(x, t) }"
    after, _ = changed_by(fold_constants, model_from(text, w=normal(4, 3)))
    assert ops(after) == ["MatMul"]


def test_huge_shape_is_declined_without_being_computed() -> None:
    text = """g (float[1] x) => (float[N] y) <int64[2] shape = {1000000, 1000000}, int64[1] ax = {0}>
        { c = ConstantOfShape(shape) s = ReduceSum<keepdims=0>(c, ax) y = Add(x, s) }"""
    record = fold_constants(model_from(text))
    assert record.declined[0].what == "the result would have 4000000000000 bytes, from 16"


def test_random_and_quantizing_operators_are_never_folded() -> None:
    text = """g (float[3] x) => (float[3] y, float[3] z) <float s = {0.1}, int8 p = {0}>
        { r = RandomNormal<shape=[3]>() m = Mul(x, zero) y = Add(m, r) w = DequantizeLinear(q, s, p) z = Mul(x, w) }"""
    model = model_from(text, q=np.array([1, 2, 3], dtype=np.int8), zero=np.zeros(3, dtype=np.float32))
    record = fold_constants(model)
    assert ops(model) == ["RandomNormal", "Mul", "Add", "DequantizeLinear", "Mul"]
    assert not record.changed


def test_what_the_runtime_cannot_compute_is_declined() -> None:
    text = "g (float[3] x) => (float[3] y) <int64[1] shape = {2}> { r = Reshape(k, shape) y = Add(x, r) }"
    record = fold_constants(model_from(text, k=normal(3)))
    assert len(record.declined) == 1


def test_a_type_that_numpy_does_not_have_is_declined() -> None:
    text = "g (bfloat16[3] x) => (bfloat16[3] y) { c = Cast<to = 16>(k) y = Max(x, c) }"
    model = model_from(text, k=normal(3))
    record = fold_constants(model)
    assert ops(model) == ["Cast", "Max"]
    assert "No corresponding Numpy type" in record.declined[0].what


def test_constant_that_is_a_graph_output_stays_computed() -> None:
    text = "g (float[3] x) => (float[3] y, float[3] z) { y = Neg(x) z = Neg(k) }"
    after, record = changed_by(fold_constants, model_from(text, k=normal(3)))
    assert ops(after) == ["Neg", "Neg"]
    assert record.declined[0].what == "a graph output stays computed"


def test_selection_from_a_constant() -> None:
    text = """g (float[1] x) => (float[1] y)
        { n = NonZero(k) c = Cast<to=1>(n) f = ReduceSum<keepdims=0>(c) y = Add(x, f) }"""
    model = model_from(text, k=np.array([0, 3, 0, 5], dtype=np.float32))
    after, _ = changed_by(fold_constants, model)
    assert ops(after) == ["Add"]


def test_optional_output_without_a_name() -> None:
    text = "g (float[1,1,3] x) => (float[1,1,3] y) { p = MaxPool<kernel_shape=[2]>(k) y = Add(x, p) }"
    model = model_from(text, k=normal(1, 1, 4))
    model.graph.node(0).resize_outputs(2)
    model.graph.node(0).outputs[1].name = ""
    fold_constants(model)
    assert ops(model) == ["Add"]


def test_a_tied_weight_behind_a_cast_and_a_transpose_is_folded_for_one_reader_and_stays_for_the_other() -> None:
    text = """g (float[2,3] x) => (float[2,4] y, float[2,3] u)
    { c = Cast<to = 1>(w) t = Transpose<perm = [1,0]>(c) y = MatMul(x, t) u = MatMul(y, c) }"""
    after, _ = changed_by(fold_constants, model_from(text, w=normal(4, 3, dtype=np.float16)))
    assert ops(after) == ["MatMul", "MatMul"]
    shapes = [edit.shape_of(node.inputs[1]) for node in after.graph]
    assert shapes == [(3, 4), (4, 3)]
