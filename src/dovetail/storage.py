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
            raise ValueError(f"{self.dtype} is a quantized dtype: it requires a scale and zero point")


Storage = QParams | FloatStorage
IN_FLOAT32 = FloatStorage(DType.F32)


class Reason(StrEnum):
    """What decided how a tensor or an edge is stored; a choice's detail text explains it in words."""

    PRECISION = "precision"  # the requested precision
    PINNED = "pinned"  # the caller's --keep
    MEASURED = "measured"  # a trial measured it to be better
    OUTPUT = "output"  # a graph output that stays float
    INTERIOR = "interior"  # between fused operators: never stored
    UNSUPPORTED = "unsupported"  # the target has no kernel for the requested precision
    NEIGHBOURS = "neighbours"  # quantizing between float operators gains nothing
    ON_EDGES = "on_edges"  # the target quantizes on the edges into its kernels, tensors stay float
    SHARED = "shared"  # an operator passes its input's quantization through
    SEPARATE = "separate"  # sharing is impossible or costs too much accuracy: an explicit conversion
    OPERAND = "operand"  # the operator requires another encoding on this input than the tensor's own
    CONSTANT = "constant"  # a weight or another constant operand
    BIAS = "bias"  # input scale x weight scale
    RECORDED = "recorded"  # taken from a QDQ model or from a plan of an earlier version


class ScaleSource(StrEnum):
    """Where a scale and zero point come from."""

    NONE = "none"  # a float storage has none
    CALIBRATED = "calibrated"  # the calibrated range
    FIXED = "fixed"  # the target's kernel always uses this one
    GIVEN = "given"  # it came with a model that another tool quantized
    GIVEN_CHANGED = "given_changed"  # as given, but converted to another dtype, or the widest of several
    VALUES = "values"  # a constant's own values
    DERIVED = "derived"  # follows from other scales


class SourcedQParams(NamedTuple):
    """A scale and zero point, where they come from, and a text that explains it."""

    params: QParams
    source: ScaleSource
    detail: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision of the plan: the storage, its reason with a detail text, and the sharing group if there is one.

    ``raised_channels``: how many scales of a weight are larger than its values, or the input model, require.
    """

    storage: Storage
    why: Reason
    detail: str = ""
    group: str | None = None
    scale_from: ScaleSource = ScaleSource.NONE
    raised_channels: int = 0

    @property
    def is_stored(self) -> bool:
        return self.why is not Reason.INTERIOR

    @property
    def is_requested_float(self) -> bool:
        """Whether the caller asked for float here, by the precision or by ``--keep``."""
        return not self.storage.dtype.is_quantized and self.why in (Reason.PRECISION, Reason.PINNED)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Every storage decision for one graph, by the names of that graph.

    ``tensors``: the storage of a tensor as it is produced. ``edges``: the storage that one consumer reads, if it
    differs from the tensor's (an explicit conversion) or if the tensor is a constant. ``stored``: the integers of
    constants that are not the rounded float values (they came with a model that was already quantized).
    """

    target: str
    precision: str
    tensors: Mapping[str, Choice]
    edges: Mapping[Edge, Choice] = field(default_factory=dict)
    stored: Mapping[Edge, Array] = field(default_factory=dict)
    quantized_io: bool = False
