"""A Range reads scalars, whatever shape the exporter gave to its bounds, and the graph loads when they are folded."""

from __future__ import annotations

import numpy as np

from dovetail.model import edit
from dovetail.passes.normalize import normalize
from dovetail.passes.scalar_range import scalar_range
from tests.equality import assert_equal, changed_by, check_valid, model_from, ops, run


def test_a_constant_bound_of_one_element_is_a_scalar_for_the_range_and_stays_for_others() -> None:
    text = """g (int64[1] x) => (int64[N] y, int64[1] z) <int64 zero = {0}, int64 one = {1}, int64[1] three = {3}>
        { r = Range(zero, three, one) y = Add(r, x) z = Add(three, x) }"""
    model = model_from(text)
    record = scalar_range(model)
    assert [site.what for site in record.changed] == ["'three' is a scalar"]
    shapes = {node.op_type: [edit.shape_of(value) for value in node.inputs] for node in model.graph}
    assert shapes["Range"] == [(), (), ()]
    assert shapes["Add"][0] == (1,)
    check_valid(model)
    found = run(model, {"x": np.array([1])})
    np.testing.assert_array_equal(found["y"], [1, 2, 3])
    np.testing.assert_array_equal(found["z"], [4])


def test_scalars_and_computed_bounds_stay() -> None:
    text = """g (int64[1] x, int64[1] n) => (int64[N] y, int64[M] z)
        <int64 zero = {0}, int64 one = {1}, int64 five = {5}>
        { a = Range(zero, five, one) y = Add(a, x) z = Range(zero, n, one) }"""
    model = model_from(text)
    _, record = changed_by(scalar_range, model)
    assert (record.changed, record.declined) == ((), ())


def test_a_bound_that_is_folded_to_one_element_gives_a_graph_that_loads() -> None:
    """As the AffineGrid function of ONNX: its depth is a slice of a shape."""
    text = """g (float[3,4] x) => (float[3,4] y, float[N] z)
        <int64 zero = {0}, int64 one = {1}, int64[1] first = {1}, int64[1] last = {2}>
        { s = Shape(x) n = Slice(s, first, last) r = Range(zero, n, one) f = Cast<to = 1>(r) y = Add(x, f)
          k = NonZero(x) m = ReduceMax<keepdims = 0>(k) p = Range(m, n, one) z = Cast<to = 1>(p) }"""
    model = model_from(text)
    after, _ = normalize(model)
    check_valid(after)
    assert_equal(model, after)
    assert ops(after).count("Range") == 1  # the one whose start depends on the data
