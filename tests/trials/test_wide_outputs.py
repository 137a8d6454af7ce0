"""Outputs that are put together from unlike parts: wider activations after the last layers, chosen by measurement."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.encoding import DType
from dovetail.op_support import FP16, W8A8, W8A16, Precision
from dovetail.plan.constraints import build_problem
from dovetail.plan.pins import resolve_keeps
from dovetail.plan.request import Keep, Pin, Pins
from dovetail.storage import Plan, Reason
from dovetail.targets import open_target
from dovetail.trials.decision import Decision
from dovetail.trials.knobs.wide_outputs import WIDE_OUTPUTS, OutputParts, decoding, ratio_db, wider_activations
from dovetail.trials.variant import pinned
from tests.planning import graph
from tests.trials.benches import bench_of

TARGET = "qnn-htp:sm8550"


def head(stride: float, more: str = "") -> str:
    """A layer, split into the bins of a box and scores; the box in pixels, put together with the scores."""
    weight = ",".join(f"{element:.4f}" for element in np.random.default_rng(0).standard_normal(64))
    return f"""g (float[1,8,4,4] x) => (float[1,5,4,4] y{more and ", float[1,4,4,4] z"})
        <float[8,8,1,1] w = {{{weight}}}, float[1,4,1,1] bins = {{0, 1, 2, 3}}, float stride = {{{stride}}},
         int64[2] sizes = {{4, 4}}>
        {{ [layer] h = Conv(x, w)  b, c = Split<axis=1>(h, sizes)  [probabilities] p = Softmax<axis=1>(b)
           [expected] e = Conv(p, bins)  [pixels] d = Mul(e, stride)  [scores] s = Sigmoid(c)
           [join] y = Concat<axis=1>(d, s) {more} }}"""


def decided(
    text: str, folder: Path, pins: Pins | None = None, target: str = TARGET
) -> tuple[Plan, tuple[Decision, ...]]:
    """The plan and the decisions of the knob, without a compiler."""
    bench, variant = bench_of(graph(text), open_target(target), W8A8, folder, available=False)
    variant, decisions = WIDE_OUTPUTS.decide(bench, pinned(pins or Pins())(variant))
    return bench.plan(variant), decisions


def test_unlike_parts_have_wide_activations_behind_the_last_layer(tmp_path: Path) -> None:
    plan, (decision,) = decided(head(100.0), tmp_path)
    narrow, wide = (alternative.figures["worst_part_sqnr_db"] for alternative in decision.alternatives)
    assert (decision.knob, str(decision.place), decision.taken) == ("outputs", "join", "w8a16")
    assert wide - narrow > 3
    assert {plan.tensors[name].storage.dtype for name in "dy"} == {DType.U16}
    assert {plan.tensors[name].storage.dtype for name in "hbcpes"} == {DType.U8}
    assert plan.tensors["d"].why is Reason.MEASURED
    assert "8 bits between the last layers and 'y' cost a part more than 3 dB" in plan.tensors["d"].detail


def test_parts_with_similar_ranges_stay(tmp_path: Path) -> None:
    plan, (decision,) = decided(head(0.3), tmp_path)
    assert decision.taken == "w8a8"
    assert plan.tensors["y"].storage.dtype is DType.U8


def boxes_at(step: float) -> str:
    """Boxes of which a quarter is accurate and the others are not, at places that are added to them."""
    weight = ",".join(f"{element:.4f}" for element in np.random.default_rng(0).standard_normal(64))
    places = ",".join(f"{step * place:.3f}" for place in range(16))
    return f"""g (float[1,8,4,4] x) => (float[1,8,4,4] y)
        <float[8,8,1,1] w = {{{weight}}}, float[1,1,4,4] places = {{{places}}}, float[1,1,1,4] wild = {{1, 9, 9, 9}},
         int64[2] sizes = {{4, 4}}>
        {{ [layer] h = Conv(x, w)  b, c = Split<axis=1>(h, sizes)  [scaled] m = Mul(b, wild)
           [pixels] d = Add(m, places)  [scores] s = Sigmoid(c)  [join] y = Concat<axis=1>(d, s) }}"""


def test_the_errors_of_accurate_boxes_decide_where_each_part_has_its_own_scale(tmp_path: Path) -> None:
    plan, (decision,) = decided(boxes_at(8.0), tmp_path, target="ort-cpu")
    narrow, wide = (alternative.figures for alternative in decision.alternatives)
    assert wide["worst_part_sqnr_db"] - narrow["worst_part_sqnr_db"] < 1
    assert ratio_db(narrow["first_quartile_error"], wide["first_quartile_error"]) > 3
    assert decision.taken == "w8a16"
    assert "the first quartile of the errors of 'y[0]' is " in decision.reason
    assert plan.tensors["d"].storage.dtype is DType.U16


def test_errors_of_scores_of_nothing_do_not_decide(tmp_path: Path) -> None:
    """Scores that are products, nearly all close to 0: in 16 bits only the errors of those fall."""
    weight = ",".join(f"{element:.4f}" for element in np.random.default_rng(0).standard_normal(64))
    text = f"""g (float[1,8,4,4] x) => (float[1,8,4,4] y)
        <float[8,8,1,1] w = {{{weight}}}, float low = {{-4}}, int64[3] sizes = {{2, 2, 4}}>
        {{ [layer] h = Conv(x, w)  c, o, b = Split<axis=1>(h, sizes)  k = Add(c, low)  s = Sigmoid(k)  q = Sigmoid(o)
           [scores] m = Mul(s, q)  t = Sigmoid(b)  u = Identity(m)  [join] y = Concat<axis=1>(m, u, t) }}"""
    _, (decision,) = decided(text, tmp_path, target="ort-cpu")
    assert decision.taken == "w8a8"
    assert all("first_quartile_error" not in row.figures for row in decision.alternatives)


def test_arithmetic_that_adds_no_error_stays(tmp_path: Path) -> None:
    plan, (decision,) = decided(head(100.0), tmp_path, target="ort-cpu")
    assert decision.taken == "w8a8"
    assert plan.tensors["d"].storage.dtype is DType.U8


def test_an_error_that_vanishes_falls_without_limit() -> None:
    assert ratio_db(2.0, 1.0) == pytest.approx(6.02, abs=0.01)
    assert [ratio_db(1.0, 0.0), ratio_db(0.0, 0.0), ratio_db(0.0, 1.0)] == [float("inf"), 0.0, 0.0]


def test_operators_that_are_pinned_are_left_alone(tmp_path: Path) -> None:
    pins = Pins({"pixels": Pin(FP16, Reason.PINNED, "--keep pixels=fp16")})
    _, decisions = decided(head(100.0), tmp_path, pins)
    assert decisions == ()


@pytest.mark.parametrize(
    ("keep", "precision", "taken"),
    [("e", W8A8, []), ("e", FP16, []), ("s", W8A8, []), ("s", W8A16, ["w8a16"]), ("p", W8A8, ["w8a16"])],
)
def test_a_tensor_that_is_pinned_is_read_as_it_is(
    keep: str, precision: Precision, taken: list[str], tmp_path: Path
) -> None:
    """The arithmetic in 16 bits would convert what the caller keeps in another precision."""
    pins = resolve_keeps(build_problem(graph(head(100.0)), open_target(TARGET).table), [Keep(keep, precision)])
    _, decisions = decided(head(100.0), tmp_path, pins)
    assert [decision.taken for decision in decisions] == taken


def test_what_is_also_used_elsewhere_is_not_part_of_the_decoding() -> None:
    """A layer reads the pixels, so they are not only for the output."""
    text = head(1.0, "z = Conv(d, v)").replace("int64[2] sizes", "float[4,1,1,1] v = {1, 2, 3, 4}, int64[2] sizes")
    problem = build_problem(graph(text), open_target(TARGET).table)
    assert [unit.name for unit in decoding(problem, "y")] == ["join"]
    alone = build_problem(graph(head(1.0)), open_target(TARGET).table)
    assert [unit.name for unit in decoding(alone, "y")] == ["pixels", "join"]


def test_an_output_is_compared_by_its_parts() -> None:
    parts = OutputParts("y", 1, (1, 2))({"y": np.arange(6).reshape(2, 3)})
    assert {name: part.tolist() for name, part in parts.items()} == {"y[0]": [[0], [3]], "y[1]": [[1, 2], [4, 5]]}


@pytest.mark.parametrize(("precision", "wider"), [(W8A8, W8A16), (W8A16, None), (FP16, None)])
def test_wider_activations_have_the_same_weights(precision, wider) -> None:  # type: ignore[no-untyped-def]
    assert wider_activations(open_target(TARGET).table, precision) == wider
