"""Streams of samples, checked one at a time against the model's inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.encoding import Array
from dovetail.errors import InputError
from dovetail.model.edit import shape_of
from dovetail.model.memory import require_memory
from dovetail.stats import DataInfo


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The name, shape and dtype of one model input, which every sample must have."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


@dataclass(frozen=True, slots=True)
class Data:
    """A stream of samples that can be read repeatedly; ``count`` is None if it is known only after reading.

    Keys of a sample that are not model inputs are labels (ground truth) for the metric.
    """

    source: str
    samples: Callable[[], Iterator[Sample]]
    count: int | None = None
    random: bool = False


@dataclass(slots=True)
class TrackedData:
    """Data that records a digest of every sample while it is read.

    One call of a model with a batch contains several samples, each with a digest of its own.
    """

    data: Data
    inputs: frozenset[str]
    digests: list[bytes] = field(default_factory=list)

    def samples(self) -> Iterator[Sample]:
        self.digests.clear()
        for sample in self.data.samples():
            self.digests.extend(digests({name: sample[name] for name in self.inputs}))
            yield sample
        if not self.digests:
            raise InputError(f"{self.data.source}: no samples")

    def info(self) -> DataInfo:
        total = hashlib.sha256(b"".join(self.digests)).hexdigest()
        return DataInfo(self.data.source, len(self.digests), total, self.data.random)


def describe(data: Data, model: ir.Model) -> TrackedData:
    """Return the same data, its samples counted and their model inputs hashed as they are read."""
    return TrackedData(data, frozenset(v.name or "" for v in model.graph.inputs))


def digests(call: Sample) -> Iterator[bytes]:
    """Yield a digest per sample of one call: its rows along the first axis, if all inputs have the same number."""
    counts = {array.shape[:1] for array in call.values()}
    rows = counts.pop()[0] if len(counts) == 1 and () not in counts else 1
    if rows < 2:
        yield _digest(call)
        return
    for row in range(rows):
        yield _digest({name: array[row : row + 1] for name, array in call.items()})


def _digest(sample: Sample) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for name in sorted(sample):
        array = np.ascontiguousarray(sample[name])
        state.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        state.update(array.data)
    return state.digest()


def input_specs(model: ir.Model) -> tuple[InputSpec, ...]:
    """Return the inputs of a model; one without a static shape is refused."""
    specs = []
    require_memory(model.graph.inputs)
    for value in model.graph.inputs:
        shape = shape_of(value)
        if shape is None or value.dtype is None:
            raise InputError(f"input {value.name!r} has no static shape: set one with --shape {value.name}=...")
        specs.append(InputSpec(value.name or "", shape, value.dtype.numpy()))
    return tuple(specs)


def check_sample(sample: Mapping[str, Array], specs: tuple[InputSpec, ...], source: str, number: int) -> Sample:
    """Return the sample with contiguous inputs in the model's dtype; wrong names, shapes or dtypes are refused."""
    checked = {key: value for key, value in sample.items() if key not in {s.name for s in specs}}
    for spec in specs:
        if spec.name not in sample:
            names = ", ".join(sorted(map(str, sample))) or "no arrays"
            raise InputError(f"{source} has no array for the model input {spec.name!r}; sample {number} has {names}")
        array = _as_array(sample[spec.name], f"{source}: {spec.name!r} of sample {number}")
        if array.shape != spec.shape:
            raise InputError(
                f"{source}: {spec.name!r} of sample {number} has shape {array.shape}, the model requires {spec.shape}"
            )
        if array.dtype != spec.dtype and not (array.dtype.kind == "f" and spec.dtype.kind == "f"):
            raise InputError(f"{source}: {spec.name!r} is {array.dtype}, the model requires {spec.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            kind = "NaN" if np.isnan(array).any() else "infinity"
            raise InputError(f"{source}: {spec.name!r} of sample {number} contains {kind}")
        # Not ascontiguousarray, which adds an axis to a scalar.
        checked[spec.name] = np.asarray(array, dtype=spec.dtype, order="C")
    return checked


def _as_array(value: object, label: str) -> Array:
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{label} is not an array ({error})") from error
