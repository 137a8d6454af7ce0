"""What is asked of a plan: one record, so that trying something means solving again with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dovetail.edge import Edge
from dovetail.encoding import Encoding
from dovetail.op_support import Precision
from dovetail.storage import Reason


@dataclass(frozen=True, slots=True)
class Keep:
    """What a caller asks with ``--keep GLOB=PRECISION``; resolved to pins once the graph is rewritten."""

    pattern: str
    precision: Precision

    def __str__(self) -> str:
        return f"--keep {self.pattern}={self.precision.name}"


@dataclass(frozen=True, slots=True)
class Pin:
    """A precision that is fixed for one unit or group, and who fixed it."""

    precision: Precision
    why: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class OperandPin:
    """The encoding that an operator reads on one edge, where its signatures leave a choice, and who fixed it."""

    encoding: Encoding
    why: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Pins:
    """What is fixed, by the names of the graph that is planned.

    ``units``: an operator computes in this precision, and so is what it writes; its readers may convert. ``groups``: a
    sharing group, by the name of any member, is stored in this precision and must reach its readers so. ``separate``:
    edges into operators that pass quantization through, which convert instead of share; with the reason.
    ``operands``: what operators read on edges where they have a choice.
    """

    units: Mapping[str, Pin] = field(default_factory=dict)
    groups: Mapping[str, Pin] = field(default_factory=dict)
    separate: Mapping[Edge, str] = field(default_factory=dict)
    operands: Mapping[Edge, OperandPin] = field(default_factory=dict)

    def without_operands_of(self, unit: str) -> Pins:
        """The same, but what one operator reads is free again."""
        kept = {edge: pin for edge, pin in self.operands.items() if edge.node != unit}
        return replace(self, operands=kept)

    def __or__(self, other: Pins) -> Pins:
        """Both; where they disagree, the other's."""
        return Pins(
            {**self.units, **other.units},
            {**self.groups, **other.groups},
            {**self.separate, **other.separate},
            {**self.operands, **other.operands},
        )


@dataclass(frozen=True, slots=True)
class Request:
    """The precision wanted, how ranges are found, and what is pinned.

    ``from_data``: whether ranges that nothing else gives may be taken from the samples; not where these are noise that
    nobody asked for.
    """

    precision: Precision
    method: str = "minmax"
    pins: Pins = field(default_factory=Pins)
    quantized_io: bool = False
    from_data: bool = True

    def pinned(self, pins: Pins) -> Request:
        """The same request with these pins too."""
        return replace(self, pins=self.pins | pins)
