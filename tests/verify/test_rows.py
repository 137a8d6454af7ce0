"""Rows after a TopK are matched before they are compared; other rows are not."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.finding import Status, Verdict
from dovetail.model.ranked import ranked_outputs
from dovetail.verify.compare import Agreement, compare_runs, side_by_side
from dovetail.verify.rows import match_rows
from dovetail.verify.verdicts import with_selections
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


def test_outputs_after_a_topk_are_found() -> None:
    model = graph(DETECTOR.replace("three = {3}", "three = {3}, int64[1] last = {-1}"))
    assert ranked_outputs(model.graph) == {"top": 1, "chosen": 1}


def test_reordered_rows_are_equal_and_changed_ones_are_not() -> None:
    random = np.random.default_rng(0)
    boxes, scores = random.random((1, 20, 4)), random.random((1, 20))
    reference = {"boxes": boxes, "scores": scores, "free": scores}
    order = random.permutation(20)
    other = {"boxes": boxes[:, order] + 1e-6, "scores": scores[:, order], "free": scores[:, order]}
    ranked = {"boxes": 1, "scores": 1}
    matched = match_rows(reference, other, ranked).outputs
    np.testing.assert_allclose(matched["boxes"], boxes, atol=2e-6)
    np.testing.assert_array_equal(matched["scores"], scores)
    result = compare_runs([reference], [other], ranked)
    assert result.outputs["boxes"].sqnr_db > 80
    assert result.outputs["free"].sqnr_db < 20  # not after a TopK: the order matters
    other["boxes"][0, 3] += 0.5
    assert compare_runs([reference], [other], ranked).outputs["boxes"].sqnr_db < 40


def test_outputs_that_are_not_ranked_are_not_changed() -> None:
    sample = {"y": np.ones((1, 3))}
    assert match_rows(sample, sample, {}).outputs["y"] is sample["y"]


RANKED = {"boxes": 1, "scores": 1}


def detector(noise: float, replaced: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Boxes and scores of 40 rows in random order, with noise, the last ones replaced by others."""
    common, random = np.random.default_rng(0), np.random.default_rng(seed)
    boxes, scores = common.random((1, 40, 4)), common.random((1, 40, 3))
    if replaced:
        boxes[:, -replaced:], scores[:, -replaced:] = random.random((1, replaced, 4)), random.random((1, replaced, 3))
    order = random.permutation(40) if seed else np.arange(40)
    rows = {"boxes": boxes[:, order], "scores": scores[:, order]}
    return {name: array + noise * random.standard_normal(array.shape) for name, array in rows.items()}


def compared(noise: float, replaced: int, seed: int = 1) -> Agreement:
    return compare_runs([detector(0, 0, 0)], [detector(noise, replaced, seed)], RANKED)


def test_replaced_rows_are_counted_and_do_not_dominate_the_noise() -> None:
    simulation, target = compared(1e-3, 3), compared(1e-3, 5, 2)
    assert (simulation.rows["boxes"].replaced, target.rows["scores"].replaced) == (3, 5)
    assert simulation.sqnr_db()["boxes"] < 20
    for figures in side_by_side(simulation, target):
        assert 50 < figures["boxes"] < 60
    verdict = with_selections(Verdict(Status.PASS, "fine"), simulation, target)
    assert verdict.status is Status.PASS
    counts = "5 of 40 rows of 'boxes' were selected differently from float, 3 in the simulation"
    assert verdict.reason == f"fine; {counts}"


def test_noise_on_the_rows_that_both_selected_is_measured() -> None:
    simulated, on_target = side_by_side(compared(1e-3, 3), compared(3e-3, 3, 2))
    assert 8 < simulated["boxes"] - on_target["boxes"] < 11


def test_more_replaced_rows_than_in_simulation_fail() -> None:
    verdict = with_selections(Verdict(Status.PASS, "fine"), compared(1e-3, 2), compared(1e-3, 9, 2))
    assert verdict.status is Status.FAIL
    assert "target and simulation select different rows; 9 of 40 rows" in verdict.reason


def test_if_most_rows_are_replaced_all_are_compared() -> None:
    simulation, target = compared(1e-3, 30), compared(1e-3, 5, 2)
    assert side_by_side(simulation, target) == (simulation.sqnr_db(), target.sqnr_db())


def test_if_both_replace_most_rows_those_that_stayed_are_compared() -> None:
    simulation, target = compared(1e-3, 25), compared(1e-3, 27, 2)
    assert all(50 < figures["boxes"] < 60 for figures in side_by_side(simulation, target))
    noisy = compared(1e-1, 27, 2)
    simulated, on_target = side_by_side(simulation, noisy)
    assert simulated["boxes"] - on_target["boxes"] > 20, "noise on the rows that stayed is still found"


@pytest.mark.parametrize(("in_simulation", "on_target"), [(25, 32), (37, 37), (25, 40)])
def test_if_the_target_replaces_more_rows_or_nearly_all_are_replaced_all_are_compared(
    in_simulation: int, on_target: int
) -> None:
    simulation, target = compared(1e-3, in_simulation), compared(1e-3, on_target, 2)
    assert side_by_side(simulation, target) == (simulation.sqnr_db(), target.sqnr_db())


def test_a_row_does_not_take_the_partner_of_another() -> None:
    reference = {"boxes": np.array([[[0.0], [1.0], [2.0]]])}
    other = {"boxes": np.array([[[1.0], [2.0], [9.0]]])}  # the first row was replaced
    matched = match_rows(reference, other, {"boxes": 1})
    assert matched.outputs["boxes"].ravel().tolist() == [9, 1, 2]
    assert matched.replaced["boxes"].tolist() == [[True, False, False]]
