"""Rows behind a TopK are matched before they are compared; nothing else is."""

from __future__ import annotations

import numpy as np

from dovetail.model.ranked import ranked_outputs
from dovetail.verify.compare import compare_runs
from dovetail.verify.rows import match_rows
from tests.planning import graph

DETECTOR = """
g (float[1,6,2] scores, float[1,6,4] boxes) => (float[1,3] top, float[1,3,4] chosen, float[1,6,2] all)
<int64[1] three = {3}, int64[3] to = {1,3,4}>
{
    best = ReduceMax <keepdims = 0> (scores, last)
    top, index = TopK(best, three)
    i = Unsqueeze(index, last)
    j = Expand(i, to)
    chosen = GatherElements <axis = 1> (boxes, j)
    all = Relu(scores)
}
"""


def test_outputs_behind_a_topk_are_found() -> None:
    model = graph(DETECTOR.replace("three = {3}", "three = {3}, int64[1] last = {-1}"))
    assert ranked_outputs(model.graph) == {"top": 1, "chosen": 1}


def test_flipped_rows_are_equal_and_changed_ones_are_not() -> None:
    random = np.random.default_rng(0)
    boxes, scores = random.random((1, 20, 4)), random.random((1, 20))
    reference = {"boxes": boxes, "scores": scores, "free": scores}
    order = random.permutation(20)
    other = {"boxes": boxes[:, order] + 1e-6, "scores": scores[:, order], "free": scores[:, order]}
    ranked = {"boxes": 1, "scores": 1}
    matched = match_rows(reference, other, ranked)
    np.testing.assert_allclose(matched["boxes"], boxes, atol=2e-6)
    np.testing.assert_array_equal(matched["scores"], scores)
    result = compare_runs([reference], [other], ranked)
    assert result.outputs["boxes"].sqnr_db > 80
    assert result.outputs["free"].sqnr_db < 20  # not behind a TopK: its order is its meaning
    other["boxes"][0, 3] += 0.5
    assert compare_runs([reference], [other], ranked).outputs["boxes"].sqnr_db < 40


def test_nothing_ranked_is_left_alone() -> None:
    sample = {"y": np.ones((1, 3))}
    assert match_rows(sample, sample, {})["y"] is sample["y"]
