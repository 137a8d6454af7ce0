"""Whether the calibration data can be what the model was trained on: two kinds of evidence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.calibrate.data import Data
from dovetail.encoding import Array
from dovetail.finding import Finding, Severity
from dovetail.model.edit import constant_of, is_float, scalar_of, shape_of
from dovetail.model.observe import ObservedRun
from dovetail.model.origin import origin_of
from dovetail.model.place import at_tensor
from dovetail.rules.accuracy import WRONG_CALIBRATION_DATA
from dovetail.stats import Stats, TensorStats

# An input with fewer values is no image: a size, a scale, a prompt.
_FEWEST_VALUES = 64
# The ranges of two parts of one data set differ less than this; 0..255 and 0..1 differ by 255.
_RANGE_RATIO = 8.0
# Values this far outside the calibrated range, relative to its width, count as outside; and the share that is too many.
_MARGIN, _OUTSIDE = 0.1, 0.05
# How many calibration samples the first layers are observed on.
_OBSERVED_SAMPLES = 4
# The share of values at a limit from which an operator counts as saturated, and how near to the limit they are.
# Measured on the shipped detector: 0 % of the rows with its own data, over 99 % with inputs multiplied by 255.
_SATURATED, _NEAR = 0.95, 1e-3
# A trained position embedding is not much smaller than what it is added to: by 1.5 to 3.7 times on the shipped
# models, by 359 to 444 times with inputs multiplied by 255.
_SWAMPED = 50.0
_LIMITS = {"Sigmoid": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}


@dataclass(frozen=True, slots=True, eq=False)
class _Embedding:
    """A position embedding, and the tensor that it is added to."""

    value: ir.Value
    array: Array
    added_to: ir.Value


@dataclass(slots=True)
class _HeldOut:
    """One input over the held-out data, relative to its calibrated range."""

    calibrated: TensorStats
    low: float = math.inf
    high: float = -math.inf
    outside: int = 0
    count: int = 0

    def add(self, array: Array) -> None:
        margin = _MARGIN * (self.calibrated.high - self.calibrated.low)
        outside = (array < self.calibrated.low - margin) | (array > self.calibrated.high + margin)
        self.low, self.high = min(self.low, float(array.min())), max(self.high, float(array.max()))
        self.outside += int(np.count_nonzero(outside))
        self.count += array.size


def compare_with_held_out(model: ir.Model, stats: Stats, samples: Iterable[Sample]) -> tuple[Finding, ...]:
    """Compare the ranges of the float inputs; every sample of the held-out data is read."""
    inputs = {value.name or "": value for value in model.graph.inputs if _is_image(value)}
    seen = {name: _HeldOut(stats.tensors[name]) for name in inputs if name in stats.tensors}
    for sample in samples:
        for name, held_out in seen.items():
            held_out.add(sample[name])
    findings = (_other_range(inputs[name], held_out) for name, held_out in seen.items() if held_out.count)
    return tuple(finding for finding in findings if finding is not None)


def _is_image(value: ir.Value) -> bool:
    return is_float(value) and math.prod(shape_of(value) or (0,)) >= _FEWEST_VALUES


def _other_range(value: ir.Value, held_out: _HeldOut) -> Finding | None:
    calibrated = held_out.calibrated
    widths = calibrated.high - calibrated.low, held_out.high - held_out.low
    outside = held_out.outside / held_out.count
    far = min(widths) > 0 and max(widths) / min(widths) >= _RANGE_RATIO
    if not far and outside < _OUTSIDE:
        return None
    message = (
        f"input {value.name!r} is {calibrated.low:.4g} to {calibrated.high:.4g} in the calibration data, but "
        f"{held_out.low:.4g} to {held_out.high:.4g} in the held-out data; {100 * outside:.3g} % of it is outside the "
        "calibrated range"
    )
    numbers = {"low": calibrated.low, "high": calibrated.high, "held_out_low": held_out.low}
    numbers |= {"held_out_high": held_out.high, "outside_share": outside}
    fix = "preprocess both as for training, for example divide by 255, or use --mean and --std for images"
    severity = Severity.ERROR if far else Severity.WARNING
    return Finding(WRONG_CALIBRATION_DATA, at_tensor(value), message, severity, numbers, fix)


def check_first_layers(model: ir.Model, data: Data, workdir: Path) -> tuple[Finding, ...]:
    """Report a first layer that saturates, or whose position embedding has no effect, on calibration samples."""
    nodes = list(model.graph)
    early = [node for node in nodes[: len(nodes) // 2] if len(node.outputs) == 1 and is_float(node.outputs[0])]
    saturating = next((node for node in early if _limits(node) is not None or node.op_type == "Softmax"), None)
    embedding = next((added for node in early if (added := _embedding(node)) is not None), None)
    watched = [] if saturating is None else [saturating.outputs[0].name or ""]
    watched += [] if embedding is None else [embedding.added_to.name or ""]
    if not watched or data.random:
        return ()
    run = ObservedRun(model, list(dict.fromkeys(watched)), workdir)
    shares, squares = [], []
    for sample in itertools.islice(data.samples(), _OBSERVED_SAMPLES):
        arrays = dict(run.run(sample))
        if saturating is not None:
            shares.append(_share_at_limits(saturating, arrays[saturating.outputs[0].name or ""]))
        if embedding is not None:
            squares.append(_mean_square(arrays[embedding.added_to.name or ""]))
    return tuple(itertools.chain(_saturated(saturating, shares), _swamped(embedding, squares)))


def _saturated(node: ir.Node | None, shares: list[float]) -> Iterator[Finding]:
    if node is None or not shares or min(shares) < _SATURATED:
        return
    value, share = node.outputs[0], sum(shares) / len(shares)
    message = (
        f"{node.op_type} {origin_of(value).name!r} is saturated on calibration samples: {100 * share:.3g} % of its "
        "values are at a limit, as if the inputs were far too large (0..255 in place of 0..1)"
    )
    yield _suspicion(value, message, {"saturated_share": share})


def _swamped(embedding: _Embedding | None, squares: list[float]) -> Iterator[Finding]:
    if embedding is None or not squares:
        return
    ratio = math.sqrt(sum(squares) / len(squares) / _mean_square(embedding.array))
    if ratio < _SWAMPED:
        return
    name = origin_of(embedding.value).name
    message = (
        f"constant {name!r} has no effect: the tensor that it is added to is {ratio:.3g} times as large on calibration "
        "samples, as if the inputs were far too large (0..255 in place of 0..1)"
    )
    yield _suspicion(embedding.value, message, {"ratio": ratio})


def _suspicion(value: ir.Value, message: str, numbers: dict[str, float]) -> Finding:
    fix = (
        "preprocess the calibration data as for training, for example divide by 255, or use --mean and --std for images"
    )
    return Finding(WRONG_CALIBRATION_DATA, at_tensor(value), message, Severity.WARNING, numbers, fix)


def _limits(node: ir.Node) -> tuple[float, float] | None:
    """The limits between which an operator saturates; None if it does not, or only on one side."""
    if node.op_type == "Clip" and len(node.inputs) == 3:
        low, high = scalar_of(node.inputs[1]), scalar_of(node.inputs[2])
        return None if low is None or high is None else (low, high)
    return _LIMITS.get(node.op_type)


def _share_at_limits(node: ir.Node, array: Array) -> float:
    limits = _limits(node)
    if limits is None:  # a row of a Softmax is saturated if one of its elements is nearly 1
        return float(np.mean(array.max(axis=-1) > 1 - _NEAR)) if array.shape[-1] > 1 else 0.0
    near = _NEAR * (limits[1] - limits[0])
    return float(np.mean((array <= limits[0] + near) | (array >= limits[1] - near)))


def _mean_square(array: Array) -> float:
    return float(np.mean(np.square(array, dtype=np.float64)))


def _embedding(node: ir.Node) -> _Embedding | None:
    """The position embedding that an Add adds: a large constant that differs along at least two axes."""
    if node.op_type != "Add":
        return None
    for value, added_to in itertools.permutations(node.inputs):
        array = constant_of(value)
        if value is None or added_to is None or array is None or constant_of(added_to) is not None:
            continue
        if array.size >= _FEWEST_VALUES and sum(size > 1 for size in array.shape) >= 2 and array.any():
            return _Embedding(value, array, added_to)
    return None
