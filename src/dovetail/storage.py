"""The plan: how every tensor, every edge and every constant of one graph is stored, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from dovetail.edge import Edge
from dovetail.encoding import Array, DType, QParams


@dataclass(frozen=True, slots=True)
class FloatStorage:
    """A tensor that stays floating point."""

    dtype: DType = DType.F32

    def __post_init__(self) -> None:
        if self.dtype.is_quantized:
            raise ValueError(f"{self.dtype} needs a scale")


Storage = QParams | FloatStorage
IN_FLOAT32 = FloatStorage(DType.F32)


class Reason(StrEnum):
    """What decided how a tensor or an edge is stored; a choice's detail text says it for people."""

    PRECISION = "precision"  # the precision that was asked for
    PINNED = "pinned"  # the caller's --keep
    MEASURED = "measured"  # a trial: it was measured and found better
    OUTPUT = "output"  # a graph output that stays float
    INTERIOR = "interior"  # between operators that run as one: never stored
    UNSUPPORTED = "unsupported"  # the target has no kernel for what was asked
    NEIGHBOURS = "neighbours"  # between float operators an integer storage gains nothing
    ON_EDGES = "on_edges"  # the target converts on the edges into its kernels, tensors stay float
    SHARED = "shared"  # an operator passes its input's quantization through
    SEPARATE = "separate"  # sharing would cost too much or cannot be: an explicit conversion
    OPERAND = "operand"  # what the operator takes on this input differs from how the tensor is stored
    CONSTANT = "constant"  # a weight or another constant operand
    BIAS = "bias"  # input scale x weight scale
    RECORDED = "recorded"  # a QDQ model, or a plan of an earlier version, has it so


class ScaleSource(StrEnum):
    """Where a scale and zero point come from."""

    NONE = "none"  # a float storage has none
    CALIBRATED = "calibrated"  # the range that calibration saw
    FIXED = "fixed"  # the target's kernel always has this one
    GIVEN = "given"  # it came with a model that another tool quantized
    GIVEN_CHANGED = "given_changed"  # the same, for another dtype or as the widest of several
    VALUES = "values"  # a constant's own values
    DERIVED = "derived"  # follows from others


class SourcedQParams(NamedTuple):
    """A scale and zero point, where they come from, and what people are told of that."""

    params: QParams
    source: ScaleSource
    detail: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision of the plan: the storage, why with a detail text, and the sharing group if there is one."""

    storage: Storage
    why: Reason
    detail: str = ""
    group: str | None = None
    scale_from: ScaleSource = ScaleSource.NONE

    @property
    def is_stored(self) -> bool:
        return self.why is not Reason.INTERIOR


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Every storage decision for one graph, by the names of that graph.

    ``tensors``: a value's storage once it has been produced. ``edges``: the storage that one consumer sees, where it
    differs from the tensor's (an explicit conversion) or where the tensor is a constant. ``stored``: the integers
    of constants that are not simply the rounded float values (they came with a model that was already quantized).
    """

    target: str
    precision: str
    tensors: Mapping[str, Choice]
    edges: Mapping[Edge, Choice] = field(default_factory=dict)
    stored: Mapping[Edge, Array] = field(default_factory=dict)
    quantized_io: bool = False
