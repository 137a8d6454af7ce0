"""Running the compiled model once per sample, and comparing it with float and simulation on the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from dovetail.backend import Runner, Sample
from dovetail.encoding import Array
from dovetail.errors import BackendError, UnfinishedError
from dovetail.finding import Status, Thresholds, Verdict
from dovetail.numerics.metrics import Comparison
from dovetail.qdq.quantized_io import RunSamples
from dovetail.verify import verdicts
from dovetail.verify.compare import Agreement, compare_runs, side_by_side

# Zeros, or the outputs of another graph, are at 0 dB or below: they must not pass because the simulation is poor.
_UNRELATED_DB = 1.0

Progress = Callable[[int, int | None], None]
Compare = Callable[[Iterable[Sample], Iterable[Sample]], Agreement]


def quiet(done: int, total: int | None) -> None:
    """A progress callback that does nothing."""


@dataclass(frozen=True, slots=True)
class TargetRun:
    """The outputs of the target and their comparisons; only ``failure`` is set if the compiled graph failed to run.

    ``worst``: the sample on which target and simulation differ most.
    """

    vs_float: Agreement | None = None
    vs_simulation: Agreement | None = None
    simulation: Agreement | None = None
    outputs: list[Sample] = field(default_factory=list)
    worst: int = 0
    failure: str = ""
    finished: bool = True

    def level_db(self, thresholds: Thresholds) -> float:
        """Return the SQNR half way between simulation and target, at the output where they differ most.

        If no float output can be compared, it is the highest SQNR that is required of a target.
        """
        if self.simulation is None or self.vs_float is None:
            return 0.0
        simulated, on_target = side_by_side(self.simulation, self.vs_float)
        figures = [
            (verdicts.bounded_db(simulated[name]), verdicts.target_db(value, simulated[name]))
            for name, value in on_target.items()
            if not math.isnan(simulated[name])
        ]
        if not figures:
            return thresholds.numerics_ceiling_db
        simulation_db, target_db = max(figures, key=lambda figure: figure[0] - figure[1])
        return (simulation_db + target_db) / 2


def run_on_target(
    runs: Mapping[str, RunSamples],
    ranked: Mapping[str, int],
    samples: list[Sample],
    runner: Runner,
    float_db: float | None,
    thresholds: Thresholds,
    progress: Progress,
    classes: Collection[str] = (),
    per_call: int = 1,
) -> tuple[TargetRun, Verdict]:
    """Run the default number of samples, and more of them before a failure is accepted.

    In 8 bit, rounding differences of one or two steps can add up in one image: a disagreement must hold on several.
    """
    compare = partial(compare_runs, ranked=ranked, classes=classes, per_call=per_call)
    ran = _run(runs, samples[: runner.samples], [], progress, compare)
    verdict = _judge(ran, float_db, thresholds)
    retry = samples[: runner.retry_samples]
    if verdict.status is Status.FAIL and not ran.failure and len(retry) > len(ran.outputs):
        ran = _run(runs, retry, ran.outputs, progress, compare)
        verdict = _judge(ran, float_db, thresholds)
    return ran, verdict


def _run(
    runs: Mapping[str, RunSamples],
    samples: list[Sample],
    earlier: list[Sample],
    progress: Progress,
    compare: Compare,
) -> TargetRun:
    outputs = list(earlier)
    try:
        for output in runs["target"](samples[len(earlier) :]):
            outputs.append(output)
            progress(len(outputs), len(samples))
    except BackendError as error:
        return TargetRun(failure=str(error), finished=not isinstance(error, UnfinishedError))
    exact, simulated = list(runs["float"](samples)), list(runs["simulation"](samples))
    return TargetRun(
        compare(exact, outputs),
        compare(simulated, outputs),
        compare(exact, simulated),
        outputs,
        min(range(len(outputs)), key=lambda i: _similarity(simulated[i], outputs[i]), default=0),
    )


def _similarity(simulated: Sample, outputs: Sample) -> float:
    """How similar two runs of one sample are: the SQNR of the worst float output, or the share of equal integers."""
    return min((_output_similarity(simulated[name], outputs[name]) for name in simulated), default=0.0)


def _output_similarity(simulated: Array, output: Array) -> float:
    if simulated.shape != output.shape:
        return -math.inf
    if simulated.dtype.kind != "f":
        return float(np.mean(simulated == output))
    sqnr_db = Comparison.of(simulated, output).sqnr_db
    return -math.inf if math.isnan(sqnr_db) else sqnr_db


def _judge(ran: TargetRun, float_db: float | None, thresholds: Thresholds) -> Verdict:
    if ran.vs_float is None or ran.simulation is None:
        return verdicts.cannot_run(ran.failure, thresholds, finished=ran.finished)
    simulation_db, target_db = side_by_side(ran.simulation, ran.vs_float)
    verdict = verdicts.numerics(simulation_db, target_db, thresholds, float_db=float_db)
    unrelated = _unrelated(ran.vs_simulation)
    if unrelated and verdict.status is Status.PASS:
        reason = f"the target's output {unrelated!r} is unrelated to the simulation's: at most {_UNRELATED_DB:g} dB"
        verdict = replace(verdict, status=Status.FAIL, reason=reason)
    count = len(ran.outputs)
    verdict = replace(verdict, evidence=f"outputs of the compiled graph on {count} sample{'s' * (count != 1)}")
    verdict = verdicts.with_integers(verdict, ran.simulation, ran.vs_float)
    return verdicts.with_selections(verdict, ran.simulation, ran.vs_float)


def _unrelated(vs_simulation: Agreement | None) -> str:
    """Return the first output that is unrelated to the simulation's; after a TopK the rows may differ anyway."""
    sqnr_db = {} if vs_simulation is None else vs_simulation.sqnr_db()
    rows = {} if vs_simulation is None else vs_simulation.rows
    return next((name for name, value in sqnr_db.items() if value <= _UNRELATED_DB and name not in rows), "")
