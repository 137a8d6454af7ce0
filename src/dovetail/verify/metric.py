"""The caller's metric, computed from outputs and labels, never on calibration samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from dovetail.backend import Sample
from dovetail.calibrate.user_code import user_code
from dovetail.errors import InputError
from dovetail.qdq.quantized_io import RunSamples
from dovetail.stats import DataInfo

Metric = Callable[[Iterator[Sample], Iterator[Sample]], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The metric's values for float, simulation and target, and the data they were measured on.

    ``lower_is_better``: the values that are errors, of which a rise is a loss.
    """

    metric: str
    data: DataInfo
    figures: Mapping[str, Mapping[str, float]]
    lower_is_better: tuple[str, ...] = ()


def measure(
    metric: Metric, name: str, run: RunSamples, samples: Iterable[Sample], inputs: frozenset[str]
) -> dict[str, float]:
    """Compute the metric on the outputs of one run; outputs and labels are produced one sample at a time."""
    for_model, for_labels = itertools.tee(samples)
    labels = ({key: value for key, value in sample.items() if key not in inputs} for sample in for_labels)
    with user_code(f"metric {name}"):
        figures = metric(iter(run(for_model)), labels)
    if not isinstance(figures, Mapping) or not figures:
        raise InputError(f"metric {name} must return a dict of named values, not {type(figures).__name__}")
    try:
        return {str(key): float(value) for key, value in figures.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"metric {name} returned a value that is not a number ({error})") from error


def lower_is_better(metric: Metric, name: str, figures: Iterable[str] | None = None) -> tuple[str, ...]:
    """The values of a metric of which lower is better, from its attribute ``lower_is_better``: names, or True for all.

    Without ``figures`` (nothing is measured yet) only the attribute itself is checked.
    """
    declared: object = getattr(metric, "lower_is_better", False)
    if isinstance(declared, bool):
        return tuple(figures or ()) if declared else ()
    if isinstance(declared, str) or not isinstance(declared, Collection):
        raise InputError(f"metric {name}: lower_is_better must be True or a set of names of values, not {declared!r}")
    wrong = next((key for key in declared if not isinstance(key, str)), None)
    if wrong is not None:
        raise InputError(f"metric {name}: lower_is_better must contain names of values, not {wrong!r}")
    if figures is not None:
        require_figures(declared, figures, f"metric {name}: lower_is_better")
    return tuple(sorted(declared))


def require_figures(names: Iterable[str], figures: Iterable[str], label: str) -> None:
    """Refuse names that no value of the metric has."""
    known = list(figures)
    for name in names:
        if name not in known:
            raise InputError(f"{label}: the metric returns no value {name!r}; expected one of {', '.join(known)}")


def refuse_overlap(calibration: Iterable[bytes], evaluation: Iterable[bytes]) -> None:
    """Refuse held-out samples that are also calibration samples."""
    calibrated = frozenset(calibration)
    for number, digest in enumerate(evaluation):
        if digest in calibrated:
            raise InputError(f"--eval: sample {number} is also in the calibration data; held-out data must be separate")
