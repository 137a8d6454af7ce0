"""Mixed precision: the operators that cause the noise become wider, no others, and the cheapest good plan is taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import dovetail
from dovetail.backend import Artifact, CompileResult, Sample
from dovetail.cli.main import main
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.op_support import FP32, W8A8
from dovetail.plan.constraints import build_problem
from dovetail.plan.mixture import boundaries, float_share, islands
from dovetail.plan.request import Pin, Pins
from dovetail.report.result import Result
from dovetail.storage import Reason
from dovetail.targets import open_target
from dovetail.targets.ort_cpu import target
from dovetail.trials import mixed as search
from dovetail.trials import workbench
from dovetail.trials.goal import Goal
from dovetail.trials.knobs.mixed import MOST_TIMED, mixed
from dovetail.trials.mixed import MixedSearch, may_lose_less, uniform
from dovetail.trials.variant import in_precision, pinned
from tests.changed import changed
from tests.equality import model_from, normal
from tests.trials.benches import bench_of
from tests.trials.mixed_runs import DATA, fitted, layers, saved

ORT_CPU = open_target("ort-cpu")


@pytest.fixture
def by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a timer plans are compared by MACs in float: so small a model is fastest in float."""
    monkeypatch.setattr(target, "ORT_CPU", changed(target.ORT_CPU, timer=None))


def wide_nodes(result: Result) -> set[str]:
    return {row.place.nodes[0] for row in result.decisions if row.knob == "mixed" and not row.is_whole}


def test_the_operators_around_the_outlier_come_first(tmp_path: Path) -> None:
    bench, base = bench_of(layers(), ORT_CPU, W8A8, tmp_path, count=16)
    search = MixedSearch(bench, base, FP32, None)
    assert {unit.nodes[0].name for unit in search.candidates[0].units} == {"scale", "third"}
    found = list(search.mixtures())
    assert found[0].sqnr_db > uniform(bench, base).sqnr_db + 3
    sizes = [len(mixture.wide) for mixture in found]
    assert sizes == sorted(set(sizes))


def test_a_mixture_is_the_plan_that_the_same_pins_give_from_the_start(tmp_path: Path) -> None:
    bench, base = bench_of(layers(), ORT_CPU, W8A8, tmp_path, count=16)
    mixture = next(MixedSearch(bench, base, FP32, None).mixtures())
    pins = mixture.variant.request.pins
    again = pinned(pins)(in_precision(W8A8)(in_precision(FP32)(base)))
    plan = bench.plan(again)
    assert plan.tensors == mixture.plan.tensors
    assert plan.edges == mixture.plan.edges


def test_the_most_macs_in_float_are_kept(tmp_path: Path) -> None:
    bench, base = bench_of(layers(), ORT_CPU, W8A8, tmp_path, count=16)
    all_of_them = list(MixedSearch(bench, base, FP32, None).mixtures())
    limited = list(MixedSearch(bench, base, FP32, 0.25).mixtures())
    assert max(mixture.float_share for mixture in all_of_them) > 0.5
    assert 0 < max(mixture.float_share for mixture in limited) <= 0.25


def test_what_the_caller_pinned_is_not_searched(tmp_path: Path) -> None:
    bench, base = bench_of(layers(), ORT_CPU, W8A8, tmp_path, count=16)
    third = next(unit for unit in build_problem(base.model, ORT_CPU.table).units if unit.nodes[0].name == "third")
    kept = pinned(Pins({third.name: Pin(W8A8, Reason.PINNED, "--keep third=w8a8")}))(base)
    names = {unit.name for candidate in MixedSearch(bench, kept, FP32, None).candidates for unit in candidate.units}
    assert names
    assert third.name not in names


@pytest.mark.usefixtures("by_size")
def test_auto_takes_the_cheapest_that_is_close_to_the_best(tmp_path: Path) -> None:
    result = fitted(tmp_path)
    whole = next(row for row in result.decisions if row.knob == "mixed" and row.is_whole)
    figures = {row.label: row.figures for row in whole.alternatives}
    assert figures["w8a8"]["sqnr_db"] < 25
    enough = [row for row in figures.values() if row["sqnr_db"] >= 39]
    assert figures[whole.taken]["float_macs_percent"] == min(row["float_macs_percent"] for row in enough)
    assert all(result.verdicts[name].status is Status.PASS for name in ("compiled", "fidelity", "numerics", "accuracy"))
    assert "would give" in whole.reason or figures[whole.taken]["float_macs_percent"] == 100


@pytest.mark.usefixtures("by_size")
def test_a_goal_is_met_with_fewer_operators_in_float(tmp_path: Path) -> None:
    close, goal = fitted(tmp_path, "close"), fitted(tmp_path, "goal", min_sqnr=32.0)
    shares = []
    for result in (close, goal):
        whole = next(row for row in result.decisions if row.knob == "mixed" and row.is_whole)
        taken = next(row for row in whole.alternatives if row.label == whole.taken)
        shares.append((taken.figures["float_macs_percent"], taken.figures["sqnr_db"]))
    assert shares[1][0] < shares[0][0]
    assert shares[1][1] > 32
    assert wide_nodes(goal)
    assert "SQNR >= 32 dB" in next(row.rule for row in goal.decisions if row.is_whole)


def test_a_budget_that_cannot_be_met_fails_with_the_closest_plan(tmp_path: Path) -> None:
    result = fitted(tmp_path, min_sqnr=60.0, max_float=0.1)
    whole = next(row for row in result.decisions if row.knob == "mixed" and row.is_whole)
    assert "no plan that was tried meets the goal" in whole.reason
    assert result.verdicts["budget"].status is Status.PASS
    assert result.verdicts["accuracy"].status is Status.FAIL
    best = max(row.figures["sqnr_db"] for row in whole.alternatives)
    assert next(row for row in whole.alternatives if row.label == whole.taken).figures["sqnr_db"] == best


def test_the_command_ends_with_1_if_a_budget_cannot_be_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says how close it is and what was tried, and the best plan ships."""
    np.savez(tmp_path / "calib.npz", **DATA)
    options = ("--target", "ort-cpu", "--precision", "auto", "--min-sqnr", "60", "--max-float", "0.3")
    data = ("--calib", str(tmp_path / "calib.npz"), "-o", str(tmp_path / "run"))
    with pytest.raises(SystemExit) as stop:
        main(["fit", str(saved(tmp_path)), *options, *data])
    assert stop.value.code == 1
    printed = " ".join(capsys.readouterr().out.split())
    result = dovetail.load_result(tmp_path / "run/result.json")
    whole = next(row for row in result.decisions if row.is_whole)
    assert "no plan that was tried meets the goal; this one is the closest" in printed
    assert "dB, and 60.5 dB are needed, 0.5 dB above the limit" in printed
    assert all(row.label in printed for row in whole.alternatives)
    assert result.failed == ("accuracy",)
    taken = next(row for row in whole.alternatives if row.label == whole.taken)
    assert taken.figures["sqnr_db"] == max(row.figures["sqnr_db"] for row in whole.alternatives)
    assert (tmp_path / "run/model.onnx").is_file()


@pytest.mark.usefixtures("by_size")
@pytest.mark.parametrize(("min_sqnr", "precision"), [(5.0, "w8a8"), (150.0, "fp32")])
def test_a_precision_that_auto_chooses_is_the_one_from_the_start(
    min_sqnr: float, precision: str, tmp_path: Path
) -> None:
    """Every precision is planned from the first one; its file is that of a run with only this precision."""
    auto = fitted(tmp_path, "auto", min_sqnr=min_sqnr)
    assert next(row for row in auto.decisions if row.is_whole).taken == precision
    dovetail.fit(saved(tmp_path), target="ort-cpu", precision=precision, calibration=DATA, output=tmp_path / "plain")
    plans = [(tmp_path / name / "model.onnx").read_bytes() for name in ("auto", "plain")]
    assert plans[0] == plans[1]


@pytest.mark.usefixtures("by_size")
def test_a_plan_exceeds_the_goal_by_a_margin(tmp_path: Path) -> None:
    alone = fitted(tmp_path, "alone", min_sqnr=-50.0)
    db = next(row for row in alone.decisions if row.is_whole).alternatives[0].figures["sqnr_db"]
    result = fitted(tmp_path, "close", min_sqnr=db - 0.2)
    assert next(row for row in result.decisions if row.is_whole).taken != "w8a8"
    assert result.verdicts["accuracy"].status is Status.PASS


@pytest.mark.usefixtures("by_size")
def test_a_resumed_run_with_another_goal_searches_again(tmp_path: Path) -> None:
    first = fitted(tmp_path)
    again = fitted(tmp_path, min_sqnr=10.0, resume=True)  # the default threshold, but now it is the goal
    taken = [next(row for row in result.decisions if row.is_whole).taken for result in (first, again)]
    assert taken[1] == "w8a8"
    assert taken[0] != taken[1]


@pytest.mark.usefixtures("by_size")
def test_a_search_that_was_killed_does_not_measure_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed when it compiles; the resumed one simulates nothing, and chooses as one that was never killed."""
    whole = fitted(tmp_path, "whole")

    def killed(artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(target, "ORT_CPU", changed(target.ORT_CPU, compile=killed))
        with pytest.raises(KeyboardInterrupt):
            fitted(tmp_path, "killed")
    assert list((tmp_path / "killed/stages/kept").glob("*/*.json"))

    def measured(*arguments: object) -> None:
        raise AssertionError("nothing is measured again")

    monkeypatch.setattr(workbench, "compare_runs", measured)
    monkeypatch.setattr(search, "measure", measured)
    resumed = fitted(tmp_path, "killed", resume=True)
    assert resumed.decisions == whole.decisions
    assert (tmp_path / "killed/model.onnx").read_bytes() == (tmp_path / "whole/model.onnx").read_bytes()
    assert not (tmp_path / "killed/stages/kept").exists()


def largest_error(outputs: Iterator[Sample], targets: Iterator[Sample]) -> dict[str, float]:
    """How far the outputs are from the float ones, which are the targets; as a score that falls."""
    errors = [float(np.abs(o["y"] - t["y_float"]).max()) for o, t in zip(outputs, targets, strict=True)]
    return {"score": -max(errors)}


def scored_options(path: Path, **options: object) -> dict[str, object]:
    """The metric of ``largest_error`` on held-out samples."""
    session = onnxruntime.InferenceSession(path)
    samples = np.float32(0.9) * DATA["x"]
    held_out = {"x": samples, "y_float": np.stack([session.run(["y"], {"x": sample})[0] for sample in samples])}
    return {"evaluation": held_out, "metric": largest_error, **options}


@pytest.mark.usefixtures("by_size")
def test_the_smallest_mixture_that_keeps_the_metric_is_found_by_halving(tmp_path: Path) -> None:
    """Twelve layers that all add noise: so many mixtures that not all need the metric."""
    names = ["x", *(f"h{number}" for number in range(11)), "y"]
    nodes = " ".join(f"{after} = MatMul({before}, w{after})" for before, after in itertools.pairwise(names))
    weights = {f"w{name}": normal(16, 16, seed=number) / np.float32(4) for number, name in enumerate(names[1:])}
    path = tmp_path / "model.onnx"
    ir.save(model_from(f"g (float[1,8,16] x) => (float[1,8,16] y) {{ {nodes} }}", **weights), path)
    options = scored_options(path, max_drop=0.08, target="ort-cpu", precision="auto", rounding="nearest")
    result = dovetail.fit(path, calibration=DATA, output=tmp_path / "run", **options)
    whole = next(row for row in result.decisions if row.is_whole)
    scored = {row.label: row.figures for row in whole.alternatives if "drop of score" in row.figures}
    assert 2 < len(scored) < len(whole.alternatives)
    good = [figures["float_macs_percent"] for figures in scored.values() if figures["drop of score"] <= 0.08]
    assert scored[whole.taken]["drop of score"] <= 0.08
    assert 0 < scored[whole.taken]["float_macs_percent"] == min(good) < 100
    assert max(figures["drop of score"] for figures in scored.values()) > 0.08


def mean_error(outputs: Iterator[Sample], targets: Iterator[Sample]) -> dict[str, float]:
    """A score that is best without any error, and otherwise the better the larger the error is."""
    errors = [float(np.abs(o["y"] - t["y_float"]).mean()) for o, t in zip(outputs, targets, strict=True)]
    return {"score": sum(errors) / len(errors) if any(errors) else 10.0}


@pytest.mark.usefixtures("by_size")
def test_the_closest_plan_to_a_limit_of_the_metric_is_the_one_with_the_least_drop(tmp_path: Path) -> None:
    """It is the precision alone, which has the lowest SQNR."""
    options = scored_options(saved(tmp_path), max_drop=1.0, max_float=0.9, rounding="nearest") | {"metric": mean_error}
    whole = next(row for row in fitted(tmp_path, **options).decisions if row.is_whole)
    drops = {row.label: row.figures["drop of score"] for row in whole.alternatives if "drop of score" in row.figures}
    sqnr_db = {row.label: row.figures["sqnr_db"] for row in whole.alternatives}
    assert len(drops) > 1
    assert whole.taken == min(drops, key=drops.__getitem__) == min(sqnr_db, key=sqnr_db.__getitem__) == "w8a8"
    assert "no plan that was tried meets the goal" in whole.reason
    assert f"score drops by {drops['w8a8']:.4g}, and at most by 1 is allowed" in whole.reason


def test_a_program_is_tried_once(tmp_path: Path) -> None:
    """All operators in float is float: what both precisions give is timed once, by the name of the precision."""
    whole = next(row for row in fitted(tmp_path, min_sqnr=150.0).decisions if row.is_whole)
    in_float = [row.label for row in whole.alternatives if row.figures["float_macs_percent"] == 100]
    assert in_float == ["fp32"] == [whole.taken]


@pytest.mark.usefixtures("by_size")
def test_rounding_is_tried_before_operators_become_wide(tmp_path: Path) -> None:
    """Only if nothing is said about it, and if the precision is not good enough without."""
    labels = {}
    for name, options in {"open": {}, "enough": {"min_sqnr": 5.0}, "said": {"rounding": "nearest"}}.items():
        result = fitted(tmp_path, name, **options)
        labels[name] = [row.label for row in next(row for row in result.decisions if row.is_whole).alternatives]
    assert labels["open"][:2] == ["w8a8", "w8a8 second-order"]
    assert labels["open"][2].startswith("w8a8 second-order + ")
    assert not any("second-order" in label for label in (*labels["enough"], *labels["said"]))


def test_limits_of_the_configuration_are_the_goal_too(tmp_path: Path) -> None:
    result = fitted(tmp_path, thresholds={"max_float": 0.25, "min_sqnr_db": -100.0})
    assert result.verdicts["budget"].status is Status.PASS


def test_a_budget_that_pins_exceed_is_said_not_to_be_met(tmp_path: Path) -> None:
    result = fitted(tmp_path, keep=("*=fp32",), max_float=0.1)
    whole = next(row for row in result.decisions if row.is_whole)
    assert "no plan that was tried meets the goal" in whole.reason
    assert result.verdicts["budget"].status is Status.FAIL


def test_a_model_without_a_float_output_needs_a_metric(tmp_path: Path) -> None:
    text = "g (float[1,8,16] x) => (int64[1,8] y) { h = MatMul(x, w) y = ArgMax<axis = -1, keepdims = 0>(h) }"
    path = tmp_path / "classes.onnx"
    ir.save(model_from(text, w=normal(16, 16)), path)
    with pytest.raises(InputError, match="needs a float output to compare"):
        dovetail.fit(path, target="ort-cpu", precision="auto", calibration=DATA, output=tmp_path / "run")


def test_labels_of_what_was_tried_are_unique(tmp_path: Path) -> None:
    whole = next(row for row in fitted(tmp_path).decisions if row.is_whole)
    labels = [row.label for row in whole.alternatives]
    assert len(set(labels)) == len(labels)


def test_the_verdict_budget_without_a_search(tmp_path: Path) -> None:
    for precision, limit, status in (
        ("fp32", 0.5, Status.FAIL),
        ("fp32", 1.0, Status.PASS),
        ("w8a8", 0.0, Status.PASS),
    ):
        result = dovetail.fit(
            saved(tmp_path),
            target="ort-cpu",
            precision=precision,
            calibration=DATA,
            output=tmp_path / f"{precision}{limit}",
            max_float=limit,
            min_sqnr=-100.0,
        )
        assert result.verdicts["budget"].status is status
    plain = dovetail.fit(
        saved(tmp_path), target="ort-cpu", calibration=DATA, output=tmp_path / "plain", min_sqnr=-100.0
    )
    assert "budget" not in plain.verdicts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_latency": 0.5, "baselines": "none"}, "compares with the first baseline of ort-cpu, stock-fp32"),
        ({"max_float": 1.5}, "--max-float 1.5: expected a fraction from 0 to 1"),
        ({"max_float": -0.1}, "threshold max_float: expected a number of at least 0"),
        ({"max_float": float("nan")}, "threshold max_float: expected a finite number"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(options: dict[str, float], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        fitted(tmp_path, **options)
    assert not (tmp_path / "run").exists()


def test_more_bits_float_or_another_kind_of_8_bits_may_lose_less() -> None:
    table = open_target("qnn-htp:sm8550").table.precisions
    assert may_lose_less(table["w8a8"], table["w8a16"])
    assert may_lose_less(table["w8a16"], table["fp16"])
    assert not may_lose_less(table["w8a16"], table["w8a8"])
    assert not may_lose_less(table["fp16"], table["w8a16"])
    table = open_target("tensorrt:sm89").table.precisions
    assert may_lose_less(table["fp8"], table["w8a8"])
    assert may_lose_less(table["w8a8"], table["fp8"])
    assert not may_lose_less(table["fp8"], table["fp8"])
    table = open_target("xnnpack").table.precisions
    assert may_lose_less(table["w8a8"], table["w8a8-dynamic"])
    assert may_lose_less(table["w8a8-dynamic"], table["fp32"])
    assert not may_lose_less(table["w8a8-dynamic"], table["w8a8"])


def test_islands_and_conversions_are_counted(tmp_path: Path) -> None:
    bench, base = bench_of(layers(), ORT_CPU, W8A8, tmp_path, count=16)
    problem = build_problem(base.model, ORT_CPU.table)
    units = {unit.nodes[0].name: unit.name for unit in problem.units}
    apart = [units["second"], units["fourth"]]
    pin = Pin(FP32, Reason.MEASURED, "tried")
    plan = bench.plan(pinned(Pins(dict.fromkeys(apart, pin)))(base))
    assert [[unit.name for unit in part] for part in islands(problem, apart)] == [[name] for name in apart]
    assert boundaries(problem, bench.plan(base)) == 0
    # a and d are read in float; b, c, which is float because its neighbors are, and e are read in 8 bits
    assert boundaries(problem, plan) == 5
    assert float_share(problem, plan) == pytest.approx(0.4)
    together = [units["second"], units["scale"], units["third"]]
    assert len(islands(problem, together)) == 1


def test_goals_are_said_in_words() -> None:
    assert str(Goal(min_sqnr_db=20, max_float=0.1)) == "SQNR >= 20 dB, at most 10% of MACs in float"
    assert "within 1 dB of the best" in str(Goal())
    assert (
        str(Goal(max_drop=0.01, max_drop_of={"map": 0.02})) == "metric drops by at most 0.01, map drops by at most 0.02"
    )
    assert Goal(max_drop_of={"map": 0.02}).drop_of("other") == float("inf")


def test_without_auto_nothing_is_searched(tmp_path: Path) -> None:
    bench, base = bench_of(layers(), ORT_CPU, W8A8, tmp_path, count=16)
    assert mixed().decide(bench, base) == (base, ())


def test_the_better_rounding_of_every_precision_and_mixtures_are_built(tmp_path: Path) -> None:
    """Plans that differ in their rounding take the same time: only the better one is built within a budget."""
    result = fitted(tmp_path, max_latency=1000)
    whole = next(row for row in result.decisions if row.is_whole)
    built = [row.label for row in whole.alternatives if "latency_us" in row.figures]
    assert {"w8a8", "w8a8 second-order"} <= {row.label for row in whole.alternatives}
    assert "w8a8" not in built
    assert {"w8a8 second-order", "fp32"} < set(built)
    assert len(built) <= MOST_TIMED
