"""The conditions of the verdict ``repaired``, one by one, on outputs made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.finding import Status, Thresholds, Verdict
from dovetail.qdq.quantized_io import RunSamples
from dovetail.verify.repaired import RepairStreams, judge_repair
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
    def run(samples: Iterable[Sample]) -> Iterator[Sample]:
        return ({name: row[None]} for row, _ in zip(rows, samples, strict=True))

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
    streams = RepairStreams(
        graph,
        stream(as_given, name),
        stream(repaired, name),
        None if reference is None else stream(reference, name),
        types if isinstance(types, str) else stream(types, name),
    )
    samples: list[Sample] = [{"x": row[None]} for row in EXPECTED]
    return judge_repair(streams, samples, "by hand", Thresholds())


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


def test_a_model_that_is_unlike_the_float_model_is_not_checked() -> None:
    assert judged(at(1), at(1), reference=EXPECTED).status is Status.NOT_CHECKED


def test_a_failure_says_what_the_types_alone_cost() -> None:
    verdict = judged(at(20), at(15), reference=EXPECTED, types=at(15.5))
    assert verdict.status is Status.FAIL
    assert verdict.reason.endswith("against float; the change of types alone gives 15.5 dB")
