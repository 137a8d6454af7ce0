"""The caller's metric with each subject quantized alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from dovetail.backend import Sample
from dovetail.qdq.quantized_io import RunSamples
from dovetail.trials.sensitivity.measure import Progress
from dovetail.trials.sensitivity.subjects import Subject
from dovetail.verify.segmented import FloatActivations, SegmentedSimulation

# How many bytes of float tensors are kept between subjects; the passes of further samples are computed again.
_CACHED_BYTES = 1 << 28
# Computes the values of the metric from a function that runs samples.
Figures = Callable[[RunSamples], dict[str, float]]


def measure_metric(
    simulation: SegmentedSimulation,
    subjects: Sequence[Subject],
    figures: Figures,
    calls: int,
    progress: Progress = lambda done, total: None,
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """The values of the metric in float, and with each subject quantized; ``calls``: of the model, for each of them."""
    runs = _FloatRuns(simulation)
    total = calls * (len(subjects) + 1)

    def measured(number: int, subject: Subject | None) -> dict[str, float]:
        return figures(runs.run(subject, lambda done: progress(number * calls + done, total)))

    in_float = measured(0, None)
    return in_float, [measured(number, subject) for number, subject in enumerate(subjects, 1)]


class _FloatRuns:
    """The float activations of the first samples, cached as long as they fit."""

    def __init__(self, simulation: SegmentedSimulation) -> None:
        self._simulation = simulation
        self._cached: list[FloatActivations] = []
        self._bytes = 0

    def run(self, subject: Subject | None, progress: Callable[[int], None]) -> RunSamples:
        """A function that runs samples, the same ones each time, with a subject quantized."""

        def outputs(samples: Iterable[Sample]) -> Iterator[Sample]:
            for number, sample in enumerate(samples):
                progress(number)
                exact = self._activations(number, sample)
                yield dict(exact.outputs) if subject is None else self._simulation.outputs(exact, subject.elements)

        return outputs

    def _activations(self, number: int, sample: Sample) -> FloatActivations:
        if number < len(self._cached):
            return self._cached[number]
        exact = self._simulation.float_activations(sample)
        size_bytes = sum(array.nbytes for array in exact.tensors.values())
        if number == len(self._cached) and self._bytes + size_bytes <= _CACHED_BYTES:
            self._cached.append(exact)
            self._bytes += size_bytes
        return exact
