"""When a verdict passes, fails, or is not checked."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.backend import CompileResult, Outcome, Probe, ReadBack, TensorReadBack, changed
from dovetail.finding import Status, Thresholds, Verdict
from dovetail.numerics.metrics import Comparison
from dovetail.verify import verdicts
from dovetail.verify.compare import Agreement, compare_runs

THRESHOLDS = Thresholds()
AVAILABLE = Probe(True, {"backend": "1.0"})


def agreement(noise: float, integer: bool = False) -> Agreement:
    reference = np.arange(1, 1001, dtype=np.int64 if integer else np.float32)
    other = reference + np.asarray(noise, reference.dtype)
    return Agreement({"y": Comparison.of(reference, other)}, {}, 3, frozenset("y" if integer else ""))


@pytest.mark.parametrize(("noise", "status"), [(0.0, "pass"), (0.01, "pass"), (0.2, "fail"), (np.nan, "fail")])
def test_normalized_needs_80_db(noise: float, status: str) -> None:
    verdict = verdicts.normalized(agreement(noise), THRESHOLDS, "data")
    assert verdict.status == status
    assert ">= 80 dB" in verdict.passes_when["float outputs"]


def test_normalized_integer_outputs_must_be_equal() -> None:
    assert verdicts.normalized(agreement(0, True), THRESHOLDS, "data").status is Status.PASS
    assert verdicts.normalized(agreement(1, True), THRESHOLDS, "data").status is Status.FAIL


def test_nothing_compared_is_not_a_pass() -> None:
    assert verdicts.normalized(Agreement(), THRESHOLDS, "data").status is Status.NOT_CHECKED


def test_a_missing_backend_is_never_a_pass() -> None:
    verdict = verdicts.compiled(CompileResult(), Probe(False, {}, "pip install the-backend"), THRESHOLDS)
    assert (verdict.status, verdict.reason) == (Status.NOT_CHECKED, "pip install the-backend")


def test_a_rejected_graph_fails_with_the_compilers_message() -> None:
    verdict = verdicts.compiled(CompileResult(error="no kernel for Erf"), AVAILABLE, THRESHOLDS)
    assert (verdict.status, verdict.reason, verdict.evidence) == (Status.FAIL, "no kernel for Erf", "backend 1.0")


def test_a_compiler_that_did_not_finish_is_not_checked() -> None:
    verdict = verdicts.compiled(CompileResult(error="killed by signal 11", finished=False), AVAILABLE, THRESHOLDS)
    assert (verdict.status, verdict.reason) == (Status.NOT_CHECKED, "killed by signal 11")


@pytest.mark.parametrize(("finished", "status"), [(True, Status.FAIL), (False, Status.NOT_CHECKED)])
def test_a_graph_that_fails_to_run_fails_unless_it_was_stopped(finished: bool, status: Status) -> None:
    verdict = verdicts.cannot_run("no answer within 600 s", THRESHOLDS, finished=finished)
    assert verdict.status is status
    assert "no answer within 600 s" in verdict.reason


def read(*outcomes: Outcome, unparsed: str = "") -> ReadBack:
    detail = changed("uint16", "uint8")[1]
    rows = tuple(TensorReadBack(f"t{i}", outcome, detail) for i, outcome in enumerate(outcomes))
    return ReadBack(rows, "a dump", unparsed)


@pytest.mark.parametrize(
    ("read_back", "status", "message"),
    [
        (
            read(Outcome.MATCHED, Outcome.ABSORBED),
            Status.PASS,
            "2 planned tensors and edges: 1 matched, 1 absorbed, 0 changed",
        ),
        (read(Outcome.MATCHED, Outcome.CHANGED, Outcome.NOT_FOUND), Status.FAIL, "'t1': planned uint16, found uint8"),
        (read(Outcome.MATCHED, Outcome.NOT_FOUND), Status.NOT_CHECKED, "1 planned tensors or edges were not found"),
        (read(unparsed="line 812: ???"), Status.NOT_CHECKED, "could not be parsed: line 812: ???"),
        (read(), Status.NOT_CHECKED, "nothing was read back"),
        (None, Status.NOT_CHECKED, "nothing was compiled"),
    ],
)
def test_fidelity(read_back: ReadBack | None, status: Status, message: str) -> None:
    verdict = verdicts.fidelity(read_back, THRESHOLDS, "nothing was compiled")
    assert verdict.status is status
    assert message in verdict.reason


@pytest.mark.parametrize(
    ("simulation", "target", "status"),
    [
        ({"y": 30.0}, {"y": 28.0}, Status.PASS),
        ({"y": 30.0}, {"y": 26.9}, Status.FAIL),
        ({"y": 30.0, "z": 40.0}, {"y": 30.0, "z": 20.0}, Status.FAIL),
        ({"y": float("inf")}, {"y": float("inf")}, Status.PASS),
        ({"y": 30.0}, {"y": -float("inf")}, Status.FAIL),
        ({"y": float("nan")}, {"y": 30.0}, Status.NOT_CHECKED),
        ({"y": 30.0}, {"y": float("nan")}, Status.FAIL),
        ({"y": 40.0, "z": 40.0}, {"y": float("nan"), "z": -10.0}, Status.FAIL),
        ({"y": 40.0, "z": float("nan")}, {"y": 40.0, "z": float("nan")}, Status.PASS),
        ({"y": 30.0}, None, Status.NOT_CHECKED),
        ({}, {}, Status.NOT_CHECKED),
    ],
)
def test_numerics_is_relative_to_the_simulation(
    simulation: dict[str, float], target: dict[str, float] | None, status: Status
) -> None:
    assert verdicts.numerics(simulation, target, THRESHOLDS, "not run").status is status


def test_top_class_agreement() -> None:
    scores = [{"s": np.float32([[1, 2, 3]])}, {"s": np.float32([[3, 2, 1]])}]
    other = [{"s": np.float32([[0, 0, 9]])}, {"s": np.float32([[0, 9, 0]])}]
    result = compare_runs(scores, other, classes={"s"})
    assert result.top1 == {"s": 0.5}
    assert compare_runs(scores, other).top1 == {}
    assert result.samples == 2
    with pytest.raises(ValueError, match="shorter"):
        compare_runs(scores, other[:1])


def test_every_output_counts_its_own_rows() -> None:
    run = {"five": np.eye(5, dtype=np.float32), "one": np.float32([[1, 2]])}
    assert compare_runs([run], [run], classes=run.keys()).top1 == {"five": 1.0, "one": 1.0}


@pytest.mark.parametrize("scores", [np.float32([[np.nan, 0]]), np.float32([[1, 0, 0]])])
def test_scores_with_nan_or_of_another_length_count_as_another_class(scores: np.ndarray) -> None:
    assert compare_runs([{"s": np.float32([[1, 0]])}], [{"s": scores}], classes={"s"}).top1 == {"s": 0.0}


@pytest.mark.parametrize("status", [Status.PASS, Status.NOT_CHECKED])
@pytest.mark.parametrize(
    ("exact", "simulated", "broken"),
    [(1.0, np.nan, True), (1.0, np.inf, True), (1.0, 3e38, False), (np.nan, np.nan, False), (np.inf, np.inf, False)],
)
def test_a_simulation_that_overflows_fails_whatever_the_target_gives(
    status: Status, exact: float, simulated: float, broken: bool
) -> None:
    reference, simulation = ({"y": np.array([1, value], np.float32), "n": np.arange(2)} for value in (exact, simulated))
    verdict = verdicts.with_overflow(Verdict(status, "unchanged"), compare_runs([reference], [simulation]))
    message = "the simulation's output 'y' contains NaN or infinity, float's does not"
    assert (verdict.status, verdict.reason) == ((Status.FAIL, message) if broken else (status, "unchanged"))


def counted(reference: list[int], other: list[float], dtype: str = "i8") -> Agreement:
    """Compare the integers of one output in two runs of one sample."""
    return compare_runs([{"classes": np.array(reference, "i8")}], [{"classes": np.array(other, dtype)}])


def test_integers_that_disagree_with_the_simulation_fail() -> None:
    fine, floats = Verdict(Status.PASS, "fine"), Verdict(Status.NOT_CHECKED, "no float output could be compared")
    classes = list(range(40))
    same, two_off, many_off = classes, [9, 9, *classes[2:]], [9] * 40
    exact = counted(classes, same)
    assert verdicts.with_integers(fine, exact, counted(classes, two_off)) == fine  # 5 % of 40
    failed = verdicts.with_integers(fine, exact, counted(classes, many_off))
    assert failed.status is Status.FAIL
    mismatches = "39 of 40 integers of 'classes' differ from float, 0 in the simulation"
    assert failed.reason == f"target and simulation disagree; {mismatches}"
    assert verdicts.with_integers(fine, counted(classes, many_off), counted(classes, many_off)) == fine
    assert verdicts.with_integers(fine, exact, counted(classes, same, "f4")).status is Status.FAIL, "as floats"
    assert verdicts.with_integers(floats, exact, exact).status is Status.PASS
    assert verdicts.with_integers(floats, exact, counted(classes, many_off)).status is Status.FAIL
