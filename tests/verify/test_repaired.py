"""The conditions of the verdict ``repaired``, one by one, on outputs made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.backend import Runner, Sample
from dovetail.errors import BackendError
from dovetail.finding import Status, Thresholds, Verdict
from dovetail.qdq.quantized_io import RunSamples
from dovetail.verify.repaired import RepairReferences, judge_on_target, judge_repair, with_confidence
from tests.equality import model_from

SAMPLES = 40
RANDOM = np.random.default_rng(0)
EXPECTED = RANDOM.standard_normal((SAMPLES, 10)).astype(np.float32)
NOISE = RANDOM.standard_normal((SAMPLES, 10)).astype(np.float32)
GRAPH = model_from("g (float[1,10] x) => (float[1,10] y) { y = Identity(x) }").graph
SCORES = model_from("g (float[1,10] x) => (float[1,10] logits) { logits = Identity(x) }").graph
FLAGS = model_from("g (float[1,10] x) => (bool[1,10] flags) { flags = IsNaN(x) }").graph


def at(level_db: float, noise: np.ndarray = NOISE) -> np.ndarray:
    """The expected outputs with noise at this level."""
    factor = np.sqrt(np.sum(EXPECTED**2) / np.sum(noise**2)) * 10 ** (-level_db / 20)
    return EXPECTED + np.float32(factor) * noise


def stream(rows: np.ndarray, name: str = "y") -> RunSamples:
    """The outputs of the first samples, as many as there are samples."""

    def run(samples: Iterable[Sample]) -> Iterator[Sample]:
        return ({name: row[None]} for row, _ in zip(rows, samples, strict=False))

    return run


def judged(
    as_given: np.ndarray,
    repaired: np.ndarray,
    *,
    reference: np.ndarray | None = None,
    types: np.ndarray | str = "unknown",
    graph: ir.Graph = GRAPH,
) -> Verdict:
    name = str(graph.outputs[0].name)
    references = referenced(as_given, reference, graph)
    types_only = types if isinstance(types, str) else stream(types, name)
    return judge_repair(references, stream(repaired, name), lambda: types_only, Thresholds())


def referenced(as_given: np.ndarray, reference: np.ndarray | None, graph: ir.Graph = GRAPH) -> RepairReferences:
    name = str(graph.outputs[0].name)
    samples: list[Sample] = [{"x": row[None]} for row in EXPECTED]
    expected = None if reference is None else list(stream(reference, name)(samples))
    return RepairReferences(graph, samples, "samples by hand", list(stream(as_given, name)(samples)), expected)


def test_with_float_one_decibel_may_be_lost() -> None:
    assert judged(at(20), at(19.1), reference=EXPECTED).status is Status.PASS
    verdict = judged(at(20), at(18.9), reference=EXPECTED)
    assert verdict.status is Status.FAIL
    assert "'y': repaired 18.9 dB, as given 20.0 dB against float" in verdict.reason
    assert judged(at(20), at(60), reference=EXPECTED).status is Status.PASS


def test_with_float_the_top_class_may_change_on_one_sample_in_a_hundred_or_on_one() -> None:
    """The noise is the same; the two largest scores are swapped on one sample, or on two."""
    for count, status in ((0, Status.PASS), (1, Status.PASS), (2, Status.FAIL)):
        swapped = EXPECTED.copy()
        for row in swapped[:count]:
            second, first = np.argsort(row)[-2:]
            row[second] = row[first] + np.float32(1e-3)
        close = np.argsort(np.diff(np.sort(EXPECTED))[:, -1])
        assert close.size == SAMPLES
        assert judged(EXPECTED + 1e-6, swapped, reference=swapped, graph=SCORES).status is Status.PASS
        noisy = swapped + np.float32(1e-6)
        verdict = judged(at(10, NOISE * 0 + 1), noisy, reference=EXPECTED, graph=SCORES)
        assert verdict.status is status, (count, verdict.reason)


def test_without_float_30_db_are_enough() -> None:
    assert judged(EXPECTED, at(30.5), types=at(90)).status is Status.PASS
    verdict = judged(EXPECTED, at(29.5), types=at(90))
    assert verdict.status is Status.FAIL
    assert "the change of types alone gives 90.0 dB" in verdict.reason


def test_without_float_below_30_db_only_what_the_types_cost() -> None:
    assert judged(EXPECTED, at(19.1), types=at(20)).status is Status.PASS
    assert judged(EXPECTED, at(18.9), types=at(20)).status is Status.FAIL
    verdict = judged(EXPECTED, at(19.1))
    assert verdict.status is Status.FAIL
    assert "the cost of the types alone is not known: unknown" in verdict.reason


def test_nan_fails() -> None:
    broken = at(60)
    broken[0, 0] = np.nan
    assert judged(at(20), broken, reference=EXPECTED).status is Status.FAIL
    assert judged(EXPECTED, broken, types=at(20)).status is Status.FAIL


def test_integers_may_differ_as_often_as_in_the_model_as_given() -> None:
    expected = EXPECTED > 0
    for count, status in ((4, Status.PASS), (9, Status.FAIL)):
        changed = expected.copy()
        changed[:count, 0] ^= True
        verdict = judged(expected, changed, reference=expected, graph=FLAGS)
        assert verdict.status is status, verdict.reason
        assert judged(changed, changed, reference=expected, graph=FLAGS).status is Status.PASS
        assert judged(expected, changed, types=expected, graph=FLAGS).status is status
        assert judged(expected, changed, types="the cost of the types is unknown", graph=FLAGS).status is status


def test_a_model_that_is_unlike_the_float_model_is_not_checked() -> None:
    assert judged(at(1), at(1), reference=EXPECTED).status is Status.NOT_CHECKED


def test_a_failure_says_what_the_types_alone_cost() -> None:
    verdict = judged(at(20), at(15), reference=EXPECTED, types=at(15.5))
    assert verdict.status is Status.FAIL
    assert verdict.reason.endswith("against float; the change of types alone gives 15.5 dB")


def test_fewer_than_a_hundred_samples_are_said_to_be_too_few_for_one_per_cent() -> None:
    verdict = judged(EXPECTED, EXPECTED, reference=EXPECTED, graph=SCORES)
    assert verdict.evidence.endswith("one sample is 2.5% of them, and may differ")
    assert "one sample" not in judged(EXPECTED, EXPECTED, reference=EXPECTED).evidence


def test_the_drop_per_sample_has_a_mean_and_a_deviation() -> None:
    """One half of the samples loses 2 dB, the other nothing: the pooled figure does not tell."""
    given = at(20)
    worse = EXPECTED + (given - EXPECTED) * np.where(np.arange(SAMPLES) % 2, 10 ** (2 / 20), 1)[:, None]
    numbers = judged(given, worse.astype(np.float32), reference=EXPECTED).numbers
    assert numbers["mean drop per sample: y"] == pytest.approx(1.0, abs=1e-3)
    assert numbers["deviation of the drop: y"] == pytest.approx(1.0127, abs=1e-3)


def test_a_mean_drop_must_be_below_the_limit_by_standard_errors() -> None:
    """1 dB on average, with a standard error of 0.16 dB."""
    given = at(20)
    worse = EXPECTED + (given - EXPECTED) * np.where(np.arange(SAMPLES) % 2, 10 ** (2 / 20), 1)[:, None]
    limits = Thresholds(repaired_drop_db=3)
    verdict = judge_repair(referenced(given, EXPECTED), stream(worse.astype(np.float32)), lambda: "unknown", limits)
    assert verdict.status is Status.PASS
    assert with_confidence(verdict, SAMPLES, 1.4, 2).status is Status.PASS
    strict = with_confidence(verdict, SAMPLES, 1.4, 3)
    assert strict.status is Status.FAIL
    assert strict.reason == "'y': a sample loses 1.0 dB on average, with a standard error of 0.2 dB"
    assert with_confidence(verdict, 7, 1.4, 3).status is Status.PASS  # too few to tell
    assert with_confidence(verdict, SAMPLES, 0.5, 0).status is Status.PASS  # the mean is not judged


def on_target(target: np.ndarray, runner: Runner, reference: np.ndarray | None = EXPECTED) -> Verdict:
    """The verdict on a model whose simulation is as good as the model as given."""
    references = referenced(at(20), reference)
    simulated = judge_repair(references, stream(at(20)), lambda: "unknown", Thresholds())
    assert simulated.status is Status.PASS
    return judge_on_target(simulated, references, stream(target), runner, lambda: "unknown", Thresholds())


def test_the_outputs_of_the_target_are_judged_too() -> None:
    everywhere = Runner(None)
    verdict = on_target(at(19.1), everywhere)
    assert (verdict.status, verdict.numbers["target: y"]) == (Status.PASS, pytest.approx(19.1, abs=0.01))
    assert verdict.numbers["repaired: y"] == pytest.approx(20, abs=0.01)
    assert verdict.evidence.endswith("; the target on 40 of them")
    verdict = on_target(at(18.5), everywhere)
    assert verdict.status is Status.FAIL
    assert verdict.reason.startswith("on the target: worse than the model as given; 'y': repaired 18.5 dB")


def test_an_emulator_runs_more_samples_before_a_failure_is_accepted() -> None:
    emulator = Runner(None, samples=1, retry_samples=8)
    first_is_bad = at(20)
    first_is_bad[0] = EXPECTED[0] + (first_is_bad[0] - EXPECTED[0]) * 1.3
    verdict = on_target(first_is_bad, emulator)
    assert (verdict.status, verdict.evidence.rpartition("; ")[2]) == (Status.PASS, "the target on 8 of them")
    verdict = on_target(at(20), emulator)
    assert (verdict.status, verdict.evidence.rpartition("; ")[2]) == (Status.PASS, "the target on 1 of them")
    assert on_target(at(15), emulator).status is Status.FAIL


def test_the_model_as_given_is_compared_on_the_samples_of_the_target() -> None:
    given = at(20)
    given[0] = EXPECTED[0] + (given[0] - EXPECTED[0]) / 10
    references = referenced(given, EXPECTED)
    simulated = judge_repair(references, stream(given), lambda: "unknown", Thresholds())
    runner = Runner(None, samples=1)
    numbers = judge_on_target(simulated, references, stream(given), runner, lambda: "unknown", Thresholds()).numbers
    assert numbers["as given, samples of the target: y"] == numbers["target: y"] > numbers["as given: y"] + 15


def test_a_target_that_cannot_be_run_leaves_the_verdict_of_the_simulation() -> None:
    def run(samples: Iterable[Sample]) -> Iterator[Sample]:
        raise BackendError("no device")
        yield {}

    references = referenced(at(20), EXPECTED)
    simulated = judge_repair(references, stream(at(20)), lambda: "unknown", Thresholds())
    verdict = judge_on_target(simulated, references, run, Runner(None), lambda: "unknown", Thresholds())
    assert verdict.status is Status.PASS
    assert verdict.evidence.endswith("; the target could not be run: no device")
