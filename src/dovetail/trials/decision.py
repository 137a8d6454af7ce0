"""What was decided by trying: the alternatives with their figures, the one that was taken, the rule and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.finding import Place, PlaceKind


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way that was tried; ``figures`` by name with their unit, ``failure``: why it cannot be taken."""

    label: str
    figures: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing that was chosen by trying: which knob, where, what was taken, and why.

    ``samples``: how many the figures were taken on.
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
        """Whether it is about the model as a whole, and not one place in it."""
        return self.place.kind is PlaceKind.MODEL

    def __str__(self) -> str:
        return f"{self.knob}: {self.place} is {self.taken}, because {self.reason}"
