"""Running the compiled model: once per sample, beside float and simulation on the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dovetail.backend import Runner, Sample
from dovetail.encoding import Array
from dovetail.errors import BackendError, UnfinishedError
from dovetail.finding import Status, Thresholds, Verdict
from dovetail.numerics.metrics import Comparison
from dovetail.qdq.boundary import Stream
from dovetail.verify import verdicts
from dovetail.verify.compare import Agreement, compare_runs, side_by_side

# Zeros, or numbers of another graph, are at 0 dB or below: a poor simulation must not let them pass.
_UNRELATED_DB = 1.0

Progress = Callable[[int, int | None], None]


def quiet(done: int, total: int | None) -> None:
    """Progress that nobody looks at."""


@dataclass(frozen=True, slots=True)
class TargetRun:
    """What the target gave, and how it compares; nothing but the failure where it does not run its own graph.

    ``worst``: the sample on which it is least like the simulation.
    """

    vs_float: Agreement | None = None
    vs_simulation: Agreement | None = None
    simulation: Agreement | None = None
    outputs: list[Sample] = field(default_factory=list)
    worst: int = 0
    failure: str = ""
    finished: bool = True

    def level_db(self, thresholds: Thresholds) -> float:
        """Half way between simulation and target, at the output where they are furthest apart.

        Where no float output can be compared, as with integers only, what is asked of a target at most.
        """
        if self.simulation is None or self.vs_float is None:
            return 0.0
        simulated, ran = side_by_side(self.simulation, self.vs_float)
        pairs = [
            (verdicts.bounded_db(simulated[name]), verdicts.target_db(value, simulated[name]))
            for name, value in ran.items()
            if not math.isnan(simulated[name])
        ]
        if not pairs:
            return thresholds.numerics_ceiling_db
        one, other = max(pairs, key=lambda pair: pair[0] - pair[1])
        return (one + other) / 2


def run_on_target(
    streams: Mapping[str, Stream],
    ranked: Mapping[str, int],
    samples: list[Sample],
    runner: Runner,
    float_db: float | None,
    thresholds: Thresholds,
    progress: Progress,
    classes: Collection[str] = (),
) -> tuple[TargetRun, Verdict]:
    """Run as many samples as the target is asked for, and more of them before a failure stands.

    In 8 bit, one or two steps of rounding can pile up in one picture: a disagreement counts when it holds on several.
    """
    ran = _run(streams, ranked, samples[: runner.samples], [], progress, classes)
    verdict = _judge(ran, float_db, thresholds)
    again = samples[: runner.retry_samples]
    if verdict.status is Status.FAIL and not ran.failure and len(again) > len(ran.outputs):
        ran = _run(streams, ranked, again, ran.outputs, progress, classes)
        verdict = _judge(ran, float_db, thresholds)
    return ran, verdict


def _run(
    streams: Mapping[str, Stream],
    ranked: Mapping[str, int],
    samples: list[Sample],
    known: list[Sample],
    progress: Progress,
    classes: Collection[str],
) -> TargetRun:
    outputs = list(known)
    try:
        for output in streams["target"](samples[len(known) :]):
            outputs.append(output)
            progress(len(outputs), len(samples))
    except BackendError as error:
        return TargetRun(failure=str(error), finished=not isinstance(error, UnfinishedError))
    exact, simulated = list(streams["float"](samples)), list(streams["simulation"](samples))
    return TargetRun(
        compare_runs(exact, outputs, ranked, classes),
        compare_runs(simulated, outputs, ranked, classes),
        compare_runs(exact, simulated, ranked, classes),
        outputs,
        min(range(len(outputs)), key=lambda i: _likeness(simulated[i], outputs[i]), default=0),
    )


def _likeness(simulated: Sample, ran: Sample) -> float:
    """How alike two runs of one sample are: the SQNR of the worst float output, or the share of equal integers."""
    return min((_alike(simulated[name], ran[name]) for name in simulated), default=0.0)


def _alike(one: Array, other: Array) -> float:
    if one.shape != other.shape:
        return -math.inf
    if one.dtype.kind != "f":
        return float(np.mean(one == other))
    sqnr_db = Comparison.of(one, other).sqnr_db
    return -math.inf if math.isnan(sqnr_db) else sqnr_db


def _judge(ran: TargetRun, float_db: float | None, thresholds: Thresholds) -> Verdict:
    if ran.vs_float is None or ran.simulation is None:
        return verdicts.cannot_run(ran.failure, thresholds, finished=ran.finished)
    simulation, found = side_by_side(ran.simulation, ran.vs_float)
    verdict = verdicts.numerics(simulation, found, thresholds, float_db=float_db)
    unrelated = _unrelated(ran.vs_simulation)
    if unrelated and verdict.status is Status.PASS:
        said = f"the target's output {unrelated!r} has nothing to do with the simulation's, bad as that is"
        verdict = replace(verdict, status=Status.FAIL, reason=said)
    count = len(ran.outputs)
    verdict = replace(verdict, evidence=f"outputs of the compiled graph on {count} sample{'s' * (count != 1)}")
    verdict = verdicts.with_integers(verdict, ran.simulation, ran.vs_float)
    return verdicts.with_selections(verdict, ran.simulation, ran.vs_float)


def _unrelated(vs_simulation: Agreement | None) -> str:
    """The first output that is as far from the simulation as anything would be; rows behind a TopK may be others."""
    found = {} if vs_simulation is None else vs_simulation.sqnr_db()
    rows = {} if vs_simulation is None else vs_simulation.rows
    return next((name for name, value in found.items() if value <= _UNRELATED_DB and name not in rows), "")
