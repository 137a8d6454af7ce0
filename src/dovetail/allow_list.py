"""Findings that a user has looked at and allows, by rule and place: the table ``[allow]`` of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dovetail.catalog import find_rule
from dovetail.errors import InputError
from dovetail.finding import Finding, Place

TABLE = "allow"


@dataclass(frozen=True, slots=True)
class AllowedFindings:
    """Findings divided into those that count and those that are allowed; ``unused``: entries that allow nothing."""

    counted: tuple[Finding, ...]
    allowed: tuple[Finding, ...]
    unused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AllowList:
    """Patterns of names, by the code of a rule, and the file that they are from."""

    patterns: Mapping[str, tuple[str, ...]]
    source: str

    def divide(self, findings: Sequence[Finding]) -> AllowedFindings:
        """Divide findings; a pattern matches the name of a node or tensor of the place, or ``*`` any place."""
        used: set[tuple[str, str]] = set()
        counted, allowed = list[Finding](), list[Finding]()
        for finding in findings:
            matching = [p for p in self.patterns.get(finding.code, ()) if _matches(p, finding.place)]
            used |= {(finding.code, pattern) for pattern in matching}
            (allowed if matching else counted).append(finding)
        every = [(code, pattern) for code, patterns in self.patterns.items() for pattern in patterns]
        unused = [f"{code} = {pattern!r}" for code, pattern in every if (code, pattern) not in used]
        return AllowedFindings(tuple(counted), tuple(allowed), tuple(unused))


def allow_list(config: Mapping[str, Any], path: Path) -> AllowList:
    """The table ``[allow]`` of a configuration file: an unknown rule or anything but a list of patterns is refused."""
    table = config.get(TABLE, {})
    if not isinstance(table, dict):
        raise InputError(f"{path}: {TABLE} must be a table, for example [{TABLE}] with Q301 = ['decoder.*']")
    patterns = {}
    for code, value in table.items():
        if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
            raise InputError(f"{path}: {TABLE}.{code} must be a list of patterns of names, for example ['decoder.*']")
        patterns[find_rule(code).code] = tuple(value)
    return AllowList(patterns, path.name)


def _matches(pattern: str, place: Place) -> bool:
    names = (*place.nodes, place.tensor, place.name, str(place))
    return any(fnmatchcase(name, pattern) for name in names if name)
