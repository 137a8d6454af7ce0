"""Decisions made by trials: the alternatives with their figures, the chosen one, the criterion and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.finding import Place, PlaceKind


@dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative of a trial; ``figures``: by name, with the unit in the name; ``failure``: why it is unusable."""

    label: str
    figures: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice made by a trial: which knob, where, what was chosen (``taken``), and why.

    ``rule``: the criterion that chose. ``samples``: how many samples the alternatives were measured on.
    """

    knob: str
    place: Place
    taken: str
    alternatives: tuple[Alternative, ...]
    rule: str
    reason: str
    samples: int

    @property
    def is_whole(self) -> bool:
        """Whether it concerns the whole model, and not one place in it."""
        return self.place.kind is PlaceKind.MODEL

    def __str__(self) -> str:
        return f"{self.knob}: {self.place} is {self.taken}, because {self.reason}"
