"""Groups of failures that have the same smallest pattern and the same cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.sweep.outcome import FailureKind
from dovetail.sweep.records import PatternRow


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Graphs that fail in the same way at the same pattern.

    ``cause``: the sentence of the first of them. ``sizes``: the values of each size over all of them.
    """

    kind: FailureKind
    pattern: str
    cause: str
    codes: tuple[str, ...]
    sizes: str
    members: tuple[PatternRow, ...]

    @property
    def smallest(self) -> PatternRow:
        """The first member that is known to be minimal, if there is one."""
        return next((member for member in self.members if member.is_minimal), self.members[0])


def grouped(rows: Iterable[PatternRow]) -> list[FailureGroup]:
    """The groups, the worst kind first, then the largest."""
    by_key: dict[tuple[FailureKind, str, str], list[PatternRow]] = {}
    for row in rows:
        by_key.setdefault((row.failure.kind, row.pattern, row.failure.signature), []).append(row)
    groups = []
    for (kind, pattern, _), members in by_key.items():
        codes = tuple(sorted({code for member in members for code in member.failure.codes}))
        groups.append(FailureGroup(kind, pattern, members[0].failure.cause, codes, _sizes(members), tuple(members)))
    order = list(FailureKind)
    return sorted(groups, key=lambda group: (order.index(group.kind), -len(group.members), group.pattern))


def _sizes(members: list[PatternRow]) -> str:
    """``height 9..12, kernel 1x1 3x3``: the range of whole numbers, or the different values."""
    names = dict.fromkeys(name for member in members for name in member.facts)
    texts = []
    for name in names:
        values = {member.facts[name] for member in members if name in member.facts}
        if all(value.isdigit() for value in values):
            numbers = sorted(map(int, values))
            text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}..{numbers[-1]}"
        else:
            text = " ".join(sorted(values))
        texts.append(f"{name} {text}")
    return ", ".join(texts)
