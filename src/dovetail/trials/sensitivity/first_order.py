"""Estimate what quantizing each subject alone costs, to first order: errors are not propagated one by one.

An element is computed only up to the end of its segment. What an error there does to the outputs is measured for every
tensor between segments, with the errors of all elements in it added with random signs: to first order, the noise at an
output is the power of the error times this factor, and the noise of several elements adds up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dovetail.encoding import Array
from dovetail.trials.sensitivity.measure import Calls, Cost, Progress, cost_of
from dovetail.trials.sensitivity.subjects import Subject
from dovetail.verify.segmented import FloatActivations, SegmentedSimulation
from dovetail.verify.verdicts import bounded_db

_SEED = 0
# How many operators, those that cost most by the estimate, are then measured: on the shipped models and a ViT-tiny at
# least 19 of the 20 that cost most are among them.
MEASURED = 30


# Where an error is when it leaves the last segment that was computed: that segment, and the tensor.
_Boundary = tuple[int, str]
# By output, the noise there per power of an error at each place.
_Factors = dict[_Boundary, dict[str, float]]
# How errors grow is measured on one call of so many; between them it has the mean. It differs between samples: measured
# on the first call alone, the rank correlation with exact figures is lower on the shipped ViTs (bench/sensitivity.py).
_EVERY = 2


@dataclass(slots=True)
class _Pool:
    """The errors of several elements in one tensor, each with power 1 and a random sign, and their powers."""

    total: Array
    powers: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Errors:
    """The error powers of one element: by tensor after the segment ``last``, and by output that comes before that."""

    last: int
    tensors: Mapping[str, float]
    outputs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Call:
    """What one call of the model showed: errors by element, how they grow, and the power of every output."""

    errors: Mapping[int, _Errors]
    factors: _Factors
    signals: Mapping[str, float]


def estimate(
    simulation: SegmentedSimulation,
    calls: Calls,
    subjects: Sequence[Subject],
    progress: Progress = lambda done, total: None,
) -> list[Cost]:
    """The estimated cost of every subject: the noise of its elements, added up.

    Outputs after a TopK are compared as they are, and all samples of one call have the same figure.
    """
    elements = sorted({number for subject in subjects for number in subject.elements})
    figures: list[dict[str, list[float]]] = [{} for _ in subjects]
    per_call: list[_Call] = []
    known: set[_Boundary] = set()
    for done, sample in enumerate(calls.read()):
        exact = simulation.float_activations(sample)
        pools: dict[_Boundary, _Pool] = {}
        random = np.random.default_rng(_SEED)
        errors: dict[int, _Errors] = {}
        for position, number in enumerate(elements):
            progress(done * len(elements) + position, calls.count * len(elements))
            errors[number] = _errors(simulation, exact, number, pools, random)
        places = [place for place in pools if done % _EVERY == 0 or place not in known]
        known.update(places)
        factors = {place: _factors(simulation, exact, place, pools[place]) for place in places}
        per_call.append(_Call(errors, factors, _signals(exact)))
    mean = _mean_factors(call.factors for call in per_call)
    for call in per_call:
        factors = {**mean, **call.factors}
        noise = {number: _noise(call.errors[number], factors, call.signals) for number in elements}
        for number, subject in enumerate(subjects):
            for name, signal in call.signals.items():
                total = math.fsum(noise[element][name] for element in subject.elements)
                figures[number].setdefault(name, []).extend([_db(signal, total)] * calls.per_call)
    return [cost_of(per_output) for per_output in figures]


def _noise(errors: _Errors, factors: _Factors, outputs: Iterable[str]) -> dict[str, float]:
    """By output, the noise that an element alone causes there."""
    return {
        name: errors.outputs.get(name, 0.0)
        + math.fsum(power * factors[errors.last, tensor].get(name, 0.0) for tensor, power in errors.tensors.items())
        for name in outputs
    }


def _signals(exact: FloatActivations) -> dict[str, float]:
    return {name: _power(array) for name, array in exact.outputs.items() if array.dtype.kind == "f"}


def _errors(
    simulation: SegmentedSimulation,
    exact: FloatActivations,
    element: int,
    pools: dict[_Boundary, _Pool],
    random: np.random.Generator,
) -> _Errors:
    """Quantize one element up to the end of its last segment; add its errors to the pools of the tensors there."""
    state = simulation.until(exact, {element})
    read = simulation.read_after(state.last)
    powers: dict[str, float] = {}
    for name, array in state.changed.items():
        if name not in read or array.dtype.kind != "f":
            continue
        error = _difference(array, exact.tensors[name])
        power = _power(error)
        if not math.isfinite(power):  # nothing to propagate: every output counts as lost
            return _Errors(state.last, {}, dict.fromkeys(exact.outputs, math.inf))
        if power > 0:
            powers[name] = power
            pool = pools.setdefault((state.last, name), _Pool(np.zeros_like(error)))
            pool.total += error * (random.choice((-1.0, 1.0)) / math.sqrt(power))
            pool.powers.append(power)
    seen = {
        **{name: array for name, array in state.changed.items() if name in exact.outputs},
        **state.quantized_outputs,
    }
    outputs = {
        name: _power(_difference(array, exact.outputs[name])) for name, array in seen.items() if array.dtype.kind == "f"
    }
    return _Errors(state.last, powers, outputs)


def _mean_factors(measured: Iterable[_Factors]) -> _Factors:
    """The geometric mean of the factors over the calls on which they were measured."""
    logs: dict[_Boundary, dict[str, list[float]]] = {}
    for factors in measured:
        for place, by_output in factors.items():
            for name, factor in by_output.items():
                log = math.log(factor) if factor > 0 else -math.inf
                logs.setdefault(place, {}).setdefault(name, []).append(log)
    return {
        place: {name: math.exp(sum(values) / len(values)) for name, values in by_output.items()}
        for place, by_output in logs.items()
    }


def _factors(
    simulation: SegmentedSimulation, exact: FloatActivations, place: _Boundary, pool: _Pool
) -> dict[str, float]:
    """By output, the noise there per power of an error in a tensor; measured with an error of usual size."""
    last, name = place
    power = math.exp(sum(map(math.log, pool.powers)) / len(pool.powers))
    scaled = pool.total * math.sqrt(power / max(_power(pool.total), 1e-300))
    error = (exact.tensors[name] + scaled).astype(exact.tensors[name].dtype)
    outputs = simulation.after(exact, last, {name: error})
    return {
        output: _power(_difference(array, exact.outputs[output])) / power
        for output, array in outputs.items()
        if array.dtype.kind == "f"
    }


def _difference(array: Array, exact: Array) -> Array:
    """The error of an array; infinite if it has another shape, as after a NonZero."""
    if array.shape != exact.shape:
        return np.full(exact.shape or (1,), math.inf)
    with np.errstate(invalid="ignore", over="ignore"):
        error: Array = array.astype(np.float64) - exact
    return error


def _power(array: Array) -> float:
    flat = np.asarray(array, dtype=np.float64).reshape(-1)
    return float(flat @ flat)


def _db(signal: float, noise: float) -> float:
    if noise == 0.0:
        return bounded_db(math.inf)
    if signal == 0.0 or not math.isfinite(noise):
        return bounded_db(-math.inf)
    return bounded_db(10.0 * (math.log10(signal) - math.log10(noise)))
