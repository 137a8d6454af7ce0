"""Unsupported nodes are split off into a tail: head followed by tail equals the model, and the split is reported."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.errors import InputError
from dovetail.model.split import BoundaryTensor, SplitModel, TailNode, split
from tests.equality import assert_equal, check_valid, model_from, normal, ops, random_inputs, run

OUTSIDE = {"NonZero": "no tensors whose size depends on the data", "NonMaxSuppression": "likewise"}
# The features at the positions with a high score; their number depends on the data.
PEAKS = """
g (float[1,8,16] x, float[1,8,1] bias) => (float[1,8,4] features, float[N,4] picked)
{
  [project] features = MatMul(x, w)
  [score] s = MatMul(features, v)
  [shift] t = Add(s, bias)
  [above] high = Greater(t, zero)
  [find] where = NonZero(high)
  [turn] rows = Transpose <perm = [1, 0]> (where)
  [keep] pairs = Slice(rows, from, to, axis)
  [pick] some = GatherND(features, pairs)
  [lift] picked = Mul(some, two)
}
"""
CONSTANTS = {
    "w": normal(16, 4),
    "v": normal(4, 1, seed=1),
    "zero": np.float32(0),
    "two": np.float32(2),
    "from": np.array([0]),
    "to": np.array([2]),
    "axis": np.array([1]),
}


def run_both(split_model: SplitModel, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a head followed by its tail."""
    head, tail = split_model.head, split_model.tail
    assert tail is not None
    check_valid(head)
    check_valid(tail)
    available = {**inputs, **run(head, {str(v.name): inputs[str(v.name)] for v in head.graph.inputs})}
    return run(tail, {str(v.name): available[str(v.name)] for v in tail.graph.inputs})


@pytest.mark.parametrize("seed", [10, 11, 12])
def test_head_followed_by_tail_equals_the_model(seed: int) -> None:
    model = model_from(PEAKS, **CONSTANTS)
    inputs = random_inputs(model, seed)
    expected, outputs = run(model, inputs), run_both(split(model, OUTSIDE), inputs)
    assert list(expected) == list(outputs)
    assert expected["picked"].shape[0] > 0
    for name, array in expected.items():
        np.testing.assert_array_equal(array, outputs[name])


def test_split_is_reported_in_original_names() -> None:
    parts = split(model_from(PEAKS, **CONSTANTS), OUTSIDE)
    assert ops(parts.head) == ["MatMul", "MatMul", "Add", "Greater"]
    assert parts.cut is not None
    assert parts.cut.nodes == (
        TailNode("find", "NonZero", OUTSIDE["NonZero"]),
        TailNode("turn", "Transpose", "depends on find", behind=True),
        TailNode("keep", "Slice", "depends on turn", behind=True),
        TailNode("pick", "GatherND", "depends on keep", behind=True),
        TailNode("lift", "Mul", "depends on pick", behind=True),
    )
    assert parts.cut.crossing == (BoundaryTensor("features", "features"), BoundaryTensor("high", "high"))
    assert [value.name for value in parts.head.graph.outputs] == ["features", "high"]


def test_input_model_is_not_changed() -> None:
    model, same = model_from(PEAKS, **CONSTANTS), model_from(PEAKS, **CONSTANTS)
    split(model, OUTSIDE)
    assert ops(model) == ops(same)
    assert_equal(same, model)


def test_model_without_unsupported_nodes_is_its_own_head() -> None:
    model = model_from("g (float[2,4] x) => (float[2,3] y) { y = MatMul(x, w) }", w=normal(4, 3))
    assert split(model, OUTSIDE) == SplitModel(model)


def test_inputs_go_to_the_side_that_reads_them() -> None:
    text = """
    g (float[1,8,4] x, float[2] size) => (float[N,2] y)
    { s = MatMul(x, w)  where = NonZero(s)  rows = Transpose(where)  z = Cast <to = 1> (rows)
      two = Slice(z, from, to, axis)  y = Mul(two, size) }
    """
    bounds = {"from": np.array([0]), "to": np.array([2]), "axis": np.array([1])}
    model = model_from(text, w=normal(4, 1), **bounds)
    parts = split(model, OUTSIDE)
    assert parts.tail is not None
    assert [v.name for v in parts.head.graph.inputs] == ["x"]
    assert [v.name for v in parts.tail.graph.inputs] == ["s", "size"]
    inputs = random_inputs(model)
    np.testing.assert_array_equal(run_both(parts, inputs)["y"], run(model, inputs)["y"])


def test_unsupported_node_before_everything_is_refused_by_name() -> None:
    text = """
    g (float[8,4] x) => (float[N,3] y)
    { [first] where = NonZero(x)  rows = Transpose(where)  one = GatherND(x, rows)
      few = Unsqueeze(one, last)  wide = Expand(few, shape)  [project] y = MatMul(wide, w) }
    """
    model = model_from(text, last=np.array([1]), shape=np.array([1, 4]), w=normal(4, 3))
    match = r"node 'first' \(NonZero\) is not supported: .* cannot be split before it, because no Conv or MatMul would"
    with pytest.raises(InputError, match=match):
        split(model, OUTSIDE)
