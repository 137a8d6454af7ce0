"""The plan: how every tensor, every edge and every constant of one graph is stored, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
IN_FLOAT16 = FloatStorage(DType.F16)
# How the reason of a tensor ends that only stands between two operators which run as one.
NEVER_STORED = ", never stored"


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision of the plan: the storage, the reason, and the sharing group if there is one."""

    storage: Storage
    reason: str
    group: str | None = None

    @property
    def is_stored(self) -> bool:
        return not self.reason.endswith(NEVER_STORED)


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
