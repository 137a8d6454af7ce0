"""Timing programs against each other: alternately, in one process, in CPU time of one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dovetail.backend import MeasuredLatency, TimedProgram

# Runs before timing, the fewest and the most timed rounds, and the seconds after which timing ends.
_WARM_UP, _LEAST_ROUNDS, _MOST_ROUNDS, _SECONDS = 3, 11, 201, 6.0


def time_alternately(runs: Sequence[Callable[[], object]]) -> list[list[float]]:
    """The CPU seconds of every run: [rounds, runs]."""
    for run in runs:
        for _ in range(_WARM_UP):
            run()
    rounds: list[list[float]] = []
    started = time.process_time()
    while len(rounds) < _LEAST_ROUNDS or (time.process_time() - started < _SECONDS and len(rounds) < _MOST_ROUNDS):
        rounds.append([_seconds(run) for run in runs])
    return rounds


def _seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def latency_of(
    programs: Mapping[str, TimedProgram], baseline: str, seconds: Sequence[Sequence[float]]
) -> MeasuredLatency:
    """The latency of programs by name, from their CPU seconds: [rounds, programs]."""
    rounds = np.array(seconds)
    base = rounds[:, list(programs).index(baseline)]
    medians = {name: float(np.median(rounds[:, i]) * 1e6) for i, name in enumerate(programs)}
    ratios = {name: float(np.median(rounds[:, i] / base)) for i, name in enumerate(programs)}
    notes = tuple(dict.fromkeys(note for program in programs.values() for note in program.compiled.notes))
    return MeasuredLatency(baseline, medians, ratios, len(rounds), notes)
