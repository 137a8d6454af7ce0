"""The request for a plan, as one record: a trial changes one field of it and plans again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dovetail.edge import Edge
from dovetail.encoding import Encoding
from dovetail.op_support import Precision
from dovetail.storage import Reason


@dataclass(frozen=True, slots=True)
class Keep:
    """One ``--keep GLOB=PRECISION`` of the caller; resolved to pins once the graph is rewritten."""

    pattern: str
    precision: Precision

    def __str__(self) -> str:
        return f"--keep {self.pattern}={self.precision.name}"


@dataclass(frozen=True, slots=True)
class Pin:
    """A precision that is fixed for one unit or group, and why."""

    precision: Precision
    why: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class OperandPin:
    """The encoding that is fixed for one input of an operator whose signatures leave a choice, and why."""

    encoding: Encoding
    why: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Pins:
    """Fixed choices, by names in the graph that is planned.

    ``units``: an operator computes and writes in this precision; its consumers may convert. ``groups``: a sharing
    group, by the name of any member, has this precision, and its consumers must read it without a conversion.
    ``separate``: edges into operators that pass quantization through, which convert instead of share; with the reason.
    ``operands``: the encoding of an operator's input where its signatures leave a choice.
    """

    units: Mapping[str, Pin] = field(default_factory=dict)
    groups: Mapping[str, Pin] = field(default_factory=dict)
    separate: Mapping[Edge, str] = field(default_factory=dict)
    operands: Mapping[Edge, OperandPin] = field(default_factory=dict)

    def without_operands_of(self, unit: str) -> Pins:
        """The same pins without those on one operator's inputs."""
        kept = {edge: pin for edge, pin in self.operands.items() if edge.node != unit}
        return replace(self, operands=kept)

    def __or__(self, other: Pins) -> Pins:
        """Both sets of pins; where they disagree, the right-hand one wins, but no trial replaces the caller's."""
        return Pins(
            {**self.units, **other.units, **_of_caller(self.units, other.units)},
            {**self.groups, **other.groups, **_of_caller(self.groups, other.groups)},
            {**self.separate, **other.separate},
            {**self.operands, **other.operands},
        )


def _of_caller(pins: Mapping[str, Pin], replacing: Mapping[str, Pin]) -> dict[str, Pin]:
    """The caller's pins that only a trial would replace."""
    return {
        name: pin
        for name, pin in pins.items()
        if pin.why is Reason.PINNED and name in replacing and replacing[name].why is not Reason.PINNED
    }


@dataclass(frozen=True, slots=True)
class Request:
    """The requested precision, the range method, and the pins.

    ``from_data``: whether missing ranges may come from the calibration samples; False where these are random noise
    that the caller did not ask for.
    """

    precision: Precision
    method: str = "minmax"
    pins: Pins = field(default_factory=Pins)
    quantized_io: bool = False
    from_data: bool = True

    def pinned(self, pins: Pins) -> Request:
        """The same request with these pins added."""
        return replace(self, pins=self.pins | pins)

    def without_operands_of(self, units: Iterable[str]) -> Request:
        """The same request without pins on the inputs of these operators, whose precision has changed."""
        pins = self.pins
        for unit in units:
            pins = pins.without_operands_of(unit)
        return replace(self, pins=pins)
