"""Sentinels that only order, or mask a Softmax, are reduced; calibrated ranges then set their magnitude."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.model.edit import constant_of, scalar_of
from dovetail.model.sentinels import Effect
from dovetail.passes.bound_sentinels import bound_sentinels
from dovetail.passes.fit_sentinels import fit_sentinels, record_bounded, tensors_beside_sentinels
from tests.equality import changed_by, model_from, ops, run

LARGEST = float(np.finfo(np.float32).max)
MASK = np.array([[0, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 0]], bool)
NUMBERS = [-1e9, -LARGEST, -np.inf]
INPUTS = "float[2,6] x, bool[2,6] m"


def _model(body: str, outputs: str = "float[2,6] y", inputs: str = INPUTS, **constants: object) -> ir.Model:
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    typed = {name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in arrays.items()}
    used = {name: array for name, array in typed.items() if name in body}
    return model_from(f"g ({inputs}) => ({outputs}) {{ {body} }}", **used)


def _largest(model: ir.Model) -> float:
    """The largest magnitude of the float constants that a node reads."""
    arrays = [constant_of(value) for node in model.graph for value in node.inputs]
    return max((float(np.abs(a).max()) for a in arrays if a is not None and a.dtype.kind == "f"), default=0.0)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "body",
    [
        "s = Where(m, x, number) y = Softmax<axis = -1>(s)",
        "s = Where(m, number, x) t = Reshape(s, same) y = Softmax<axis = -1>(t)",
        "z = Where(m, zero, number) s = Add(x, z) y = Softmax<axis = -1>(s)",
        "z = Where(m, number, zero) s = Add(z, x) y = Softmax<axis = -1>(s)",
    ],
)
def test_masks_selected_or_computed_by_where(body: str, number: float) -> None:
    """The random booleans mask some elements of every row, and the same number is an output elsewhere."""
    body = f"{body} other = Max(x, number)"
    outputs = "float[2,6] y, float[2,6] other"
    model = _model(body, outputs, number=number, zero=0.0, same=np.array([2, 6]))
    after, record = changed_by(bound_sentinels, model)
    assert record.changed
    (where,) = [node for node in after.graph if node.op_type == "Where"]
    assert [scalar_of(value) for value in where.inputs[1:] if constant_of(value) is not None] == [-1e4]
    assert scalar_of(next(node for node in after.graph if node.op_type == "Max").inputs[1]) == np.float32(number)


@pytest.mark.parametrize(
    "body",
    [
        "c = Cast<to = 1>(m) d = Sub(one, c) z = Mul(d, number) s = Add(x, z) y = Softmax<axis = -1>(s)",
        "c = Cast<to = 1>(m) z = Mul(c, number) s = Add(x, z) y = Softmax<axis = -1>(s)",
        "u = Reshape(m, flat) c = Cast<to = 1>(u) d = Sub(one, c) v = Reshape(d, same) z = Mul(v, number) "
        "s = Add(x, z) y = Softmax<axis = -1>(s)",
    ],
)
@pytest.mark.parametrize("rows", ["some", "all masked", "none masked"])
def test_masks_computed_from_a_boolean_by_arithmetic(body: str, rows: str) -> None:
    """Also where a row is masked entirely: -1e9 rounds all scores away, so all probabilities are equal."""
    constants = {"number": -1e9, "one": 1.0, "same": np.array([2, 6]), "flat": np.array([12])}
    model = _model(f"{body} other = Neg(z)", "float[2,6] y, float[2,6] other", **constants)
    after, record = changed_by(bound_sentinels, model)
    assert record.changed
    assert "Where" in ops(after)
    mask = {"some": MASK, "all masked": np.zeros((2, 6), bool), "none masked": np.ones((2, 6), bool)}[rows]
    for array in (mask, ~mask):
        inputs = {"x": np.random.default_rng(1).normal(size=(2, 6)).astype(np.float32), "m": array}
        expected, found = run(model, inputs), run(after, inputs)
        np.testing.assert_allclose(found["y"], expected["y"], atol=1e-7)
        np.testing.assert_array_equal(found["y"] == 0, expected["y"] == 0)
        np.testing.assert_array_equal(found["other"], expected["other"])


def test_an_added_constant_mask_before_any_softmax() -> None:
    """Not attention: gating weights, say. The constant is read by something else too."""
    table = np.where(MASK, 0.25, -np.inf)
    body = "s = Add(x, table) y = Softmax<axis = -1>(s) other = Max(x, table)"
    after, record = changed_by(bound_sentinels, _model(body, "float[2,6] y, float[2,6] other", table=table))
    assert [site.where for site in record.changed] == ["table"]
    reduced = constant_of(after.graph.node(0).inputs[1])
    np.testing.assert_array_equal(reduced, np.where(MASK, 0.25, -1e4).astype(np.float32))
    assert np.isneginf(constant_of(after.graph.node(2).inputs[1])).any()


@pytest.mark.parametrize("sentinel", [*NUMBERS, LARGEST])
@pytest.mark.parametrize(
    ("end", "outputs"),
    [
        ("v, y = TopK<axis = -1>(s, two)", "int64[2,2] y"),
        ("v, y = TopK<axis = -1, largest = 0>(s, two)", "int64[2,2] y"),
        ("y = ArgMax<axis = -1>(s)", "int64[2,1] y"),
        ("t = ReduceMax(s, first) v, y = TopK<axis = -1>(t, two)", "int64[1,2] y"),
    ],
)
def test_where_only_the_order_counts(end: str, outputs: str, sentinel: float) -> None:
    body = f"s = Where(m, x, number) {end} other = Max(x, number)"
    constants = {"number": sentinel, "two": np.array([2]), "first": np.array([0])}
    after, record = changed_by(bound_sentinels, _model(body, f"{outputs}, float[2,6] other", **constants))
    assert record.changed
    assert abs(scalar_of(after.graph.node(0).inputs[2]) or 0.0) == 1e4


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("s = Where(m, x, number) y, i = TopK<axis = -1>(s, six)", "depends on its magnitude"),
        ("z = Where(m, zero, number) s = Add(x, z) v, i = TopK<axis = -1>(s, six) y = Identity(x)", "added to it"),
        ("s = Where(m, x, big) y = Softmax<axis = -1>(s)", "a positive sentinel"),
        (
            "s = Where(m, x, number) p = Softmax<axis = -1>(s) n = IsNaN(p) y = Where(n, zero, p)",
            "masked entirely is NaN",
        ),
        ("s = Add(x, rows) y = Softmax<axis = -1>(s)", "masks a whole row"),
        ("s = Add(x, table) y = Softmax<axis = 0>(s)", "not those of the mask"),
        ("s = Where(m, x, number) p = Softmax<axis = -1>(s) q = Sigmoid(s) y = Add(p, q)", "different effects"),
        ("s = Where(m, x, number) y = Relu(s)", "depends on its magnitude"),
        ("c = Cast<to = 1>(m) z = Mul(c, infinity) s = Add(x, z) y = Softmax<axis = -1>(s)", "zero times infinity"),
        ("z = Where(m, one, number) s = Add(x, z) y = Softmax<axis = -1>(s)", "not zero"),
        ("z = Mul(x, number) s = Add(x, z) y = Softmax<axis = -1>(s)", "not computed from a boolean"),
    ],
)
def test_what_is_not_equivalent_is_declined(body: str, reason: str) -> None:
    table = np.where(MASK, 0.0, -LARGEST)
    rows = np.stack([table[0], np.full(6, -LARGEST)])
    constants = {"number": -1e9, "zero": 0.0, "one": 1.0, "big": 1e34, "six": np.array([6]), "infinity": -np.inf}
    model = _model(body, outputs="float[2,6] y", table=table, rows=rows, **constants)
    before = ir.to_proto(model).SerializeToString()
    record = bound_sentinels(model)
    assert record.changed == ()
    assert any(reason in site.what for site in record.declined), record.declined
    assert ir.to_proto(model).SerializeToString() == before


def _fitted(model: ir.Model, ranges: dict[str, tuple[float, float]]) -> ir.Model:
    after, _ = changed_by(bound_sentinels, model)
    assert set(tensors_beside_sentinels(after)) == set(ranges)
    after.graph.meta.clear()
    record = fit_sentinels(after, ranges)
    assert len(record.changed) <= 1
    return after


def test_a_mask_is_as_large_as_the_scores_require() -> None:
    model = _model("s = Where(m, x, number) y = Softmax<axis = -1>(s)", number=-LARGEST)
    after = _fitted(model, {"x": (-8.0, 8.0)})
    assert _largest(after) == 8 + 2 * 16 + 104
    inputs = {"x": np.array([[-8, 8, -8, 8, 0, 8], [-8, 8, 8, 8, 8, -8]], np.float32), "m": MASK}
    expected, found = run(model, inputs)["y"], run(after, inputs)["y"]
    np.testing.assert_array_equal(found, expected)  # zeros are zeros
    assert (found == 0).sum() == (~MASK).sum()


def test_an_added_mask_counts_what_else_is_added() -> None:
    table = np.where(MASK, np.linspace(0, 5, 6), -np.inf)
    after = _fitted(_model("s = Add(x, table) y = Softmax<axis = -1>(s)", table=table), {"x": (-4.0, 4.0)})
    assert _largest(after) == 104 + 2 * (8 + 5)


def test_a_sentinel_is_larger_where_the_offsets_are() -> None:
    """Refinement in logits: two sums, then a Sigmoid."""
    anchors = np.array([[1, 1, 1, 1e34, 1, 1], [1, 1, -1e34, 1, 1, 1]])
    body = "a = Add(x, anchors) p = Sigmoid(a) b = Add(a, d) q = Sigmoid(b) y = Add(p, q)"
    model = _model(body, inputs="float[2,6] x, float[2,6] d", anchors=anchors)
    assert _largest(_fitted(model, {"x": (-1.0, 1.0), "d": (-1.0, 1.0)})) == 16
    assert _largest(_fitted(model, {"x": (-9.0, 3.0), "d": (-1.0, 2.0)})) == 12 + 2 * (9 + 2)
    shifted = {"x": np.full((2, 6), -9, np.float32), "d": np.full((2, 6), -1, np.float32)}
    after = _fitted(model, {"x": (-9.0, 9.0), "d": (-1.0, 1.0)})
    np.testing.assert_allclose(run(after, shifted)["y"], run(model, shifted)["y"], atol=2e-5)


def test_a_mask_is_larger_than_ten_thousand_where_the_scores_are() -> None:
    model = _model("s = Where(m, x, number) y = Softmax<axis = -1>(s)", number=-1e9)
    after = _fitted(model, {"x": (-30000.0, 0.0)})
    assert _largest(after) > 30000 + 104
    inputs = {"x": np.full((2, 6), -25600, np.float32), "m": MASK}
    np.testing.assert_array_equal(run(after, inputs)["y"], run(model, inputs)["y"])


def test_a_sentinel_before_a_clip_is_beyond_its_bounds() -> None:
    anchors = np.array([[1, 1, 1, 1e34, 1, 1]])
    model = _model("a = Add(x, anchors) y = Clip(a, low, high)", anchors=anchors, low=-15.0, high=15.0)
    after = _fitted(model, {"x": (-9.0, 9.0)})
    inputs = {"x": np.full((2, 6), -18, np.float32), "m": MASK}
    np.testing.assert_array_equal(run(after, inputs)["y"], run(model, inputs)["y"])


@pytest.mark.parametrize(
    "body",
    [
        "f = Cast<to = 1>(m) n = Sub(one, f) k = Mul(n, number) a, b = Split<num_outputs = 2, axis = 0>(k) "
        "r = Concat<axis = 0>(b, b) s = Add(x, r) y = Softmax<axis = -1>(s)",
        "k = Where(row, zero, number) t = Transpose<perm = [1, 0]>(k) s = Add(x, t) y = Softmax<axis = -1>(s)",
    ],
)
def test_a_mask_whose_condition_cannot_be_moved_alike_stays_added(body: str) -> None:
    constants = {"one": 1.0, "number": -1e9, "zero": np.zeros((1, 1)), "row": np.array([True, False])}
    model = _model(body, **constants)
    after, _ = changed_by(bound_sentinels, model)
    inputs = {"x": np.linspace(-3, 3, 12, dtype=np.float32).reshape(2, 6), "m": MASK}
    used = {value.name: inputs[value.name] for value in model.graph.inputs}
    np.testing.assert_array_equal(run(after, used)["y"], run(model, used)["y"])


def test_without_the_range_of_its_neighbor_a_mask_stays() -> None:
    model = _model("s = Where(m, x, number) y = Softmax<axis = -1>(s)", number=-LARGEST)
    after, _ = changed_by(bound_sentinels, model)
    assert fit_sentinels(after, {}).changed == ()
    assert _largest(after) == 1e4


def test_data_of_the_same_magnitude_is_not_a_sentinel() -> None:
    anchors = np.array([[16, 1, 1, 1e34, 1, -16]])
    after = _fitted(_model("a = Add(x, anchors) y = Sigmoid(a)", anchors=anchors), {"x": (-10.0, 0.0)})
    array = constant_of(after.graph.node(0).inputs[1])
    assert array is not None
    assert array[0].tolist() == [16, 1, 1, 32, 1, -16]


@pytest.mark.parametrize("between", ["t = Mul(s, small)", "t = Add(s, bias)"])
def test_a_mask_that_is_scaled_or_summed_before_its_softmax_stays(between: str) -> None:
    """Of -136 an eighth is left, which is not zero after the Softmax."""
    table = np.where(MASK, 0.0, -1e4)
    body = f"s = Add(x, table) {between} y = Softmax<axis = -1>(t)"
    model = _model(body, table=table, small=0.125, bias=np.linspace(-5, 5, 6))
    record_bounded(model.graph.initializers["table"], Effect.MASKS, 1e4)
    assert fit_sentinels(model, {"x": (-8.0, 8.0)}).changed == ()
    assert _largest(model) == 1e4


def test_the_record_of_reduced_sentinels_does_not_ship() -> None:
    model = _model("s = Where(m, x, number) y = Softmax<axis = -1>(s)", number=-LARGEST)
    after = _fitted(model, {"x": (-8.0, 8.0)})
    assert tensors_beside_sentinels(after) == ()
    assert not any("sentinel" in key for value in after.graph.initializers.values() for key in value.metadata_props)
