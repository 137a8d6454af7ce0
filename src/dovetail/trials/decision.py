"""What was decided by trying: the alternatives with their figures, the one that was taken, the rule and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way that was tried; ``figures`` by name with their unit, ``failure``: why it cannot be taken."""

    label: str
    figures: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""

    def __str__(self) -> str:
        if self.failure:
            return f"{self.label}: {self.failure}"
        return f"{self.label}: {', '.join(f'{name} {value:.4g}' for name, value in self.figures.items())}"


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing that was chosen by trying: which knob, where (the caller's names), what was taken, and why.

    ``samples``: how many the figures were taken on. ``is_whole``: about the model as a whole, not one place in it.
    """

    knob: str
    where: str
    taken: str
    alternatives: tuple[Alternative, ...]
    rule: str
    reason: str
    samples: int
    is_whole: bool = False

    def __str__(self) -> str:
        return f"{self.knob}: {self.where} is {self.taken}, because {self.reason}"
