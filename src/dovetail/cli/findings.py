"""Findings on a model as text, JSON, SARIF or GitHub annotations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dovetail
from dovetail.allow_list import TABLE
from dovetail.catalog import find_rule
from dovetail.document import encode, to_builtins
from dovetail.finding import Finding, PlaceKind, Severity
from dovetail.rule_docs import explain

# How many places of a group are shown.
PLACES = 3
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_GITHUB_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


@dataclass(frozen=True, slots=True)
class Shown:
    """The findings on a model that count, those that the user allows, and entries of the allow list that do nothing."""

    findings: tuple[Finding, ...]
    model: Path
    target: str
    allowed: tuple[Finding, ...] = ()
    unused: tuple[str, ...] = ()


def as_text(shown: Shown, every: bool = False) -> str:
    """Format the findings as blocks of text, grouped by code and severity, and the number of findings.

    A group shows the message and the fix of its first finding, and three places; with ``every`` each finding is a block
    of its own.
    """
    findings = shown.findings
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        groups.setdefault(number if every else (finding.code, finding.severity), []).append(finding)
    blocks = [_block(group) for group in groups.values()]
    hidden = len(findings) - sum(min(len(group), PLACES) for group in groups.values())
    more = [f"{hidden} places are not shown: add --all to see every finding\n"] if hidden else []
    unused = [f"{TABLE}: {entry} allows nothing: remove it, or correct it" for entry in shown.unused]
    return "\n".join([*blocks, *more, *unused, _count(shown)])


def _block(group: list[Finding]) -> str:
    """Findings of one rule: how many, the first one in full, and where the next ones are."""
    first, count = group[0], f", {len(group)} places" if len(group) > 1 else ""
    lines = [f"{first.code} {find_rule(first.code).name} ({first.severity}{count})"]
    lines += [f"  at:  {first.place}", f"  {first.message}"]
    lines += [f"  fix: {first.fix}"] if first.fix else []
    lines += [f"  also at: {finding.place}" for finding in group[1:PLACES]]
    lines += [f"  and at {len(group) - PLACES} more"] if len(group) > PLACES else []
    return "\n".join(lines) + "\n"


def as_json(shown: Shown) -> str:
    """Format every finding with all of its fields."""
    values = {"model": shown.model.name, "target": shown.target, "findings": _rows(shown.findings)}
    if shown.allowed:
        values["allowed"] = _rows(shown.allowed)
    return encode(values, indent=2).decode()


def _rows(findings: tuple[Finding, ...]) -> list[dict[str, Any]]:
    return [{"name": find_rule(finding.code).name, **to_builtins(finding)} for finding in findings]


def as_sarif(shown: Shown) -> str:
    """Format as SARIF 2.1.0 for code scanning: the file, and in it the node or tensor as a logical location.

    Allowed findings are results with a suppression.
    """
    codes = sorted({finding.code for finding in (*shown.findings, *shown.allowed)})
    results = [_sarif_result(finding, codes.index(finding.code), shown.model) for finding in shown.findings]
    for finding in shown.allowed:
        suppressed = {"suppressions": [{"kind": "external", "justification": "in the allow list"}]}
        results.append({**_sarif_result(finding, codes.index(finding.code), shown.model), **suppressed})
    driver = {
        "name": "dovetail",
        "version": dovetail.__version__,
        "rules": [_sarif_rule(code) for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        "properties": {"target": shown.target},
        "results": results,
    }
    return encode({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2).decode()


def as_github(shown: Shown) -> str:
    """Format as workflow commands, which GitHub Actions shows as annotations."""
    lines = []
    for finding in shown.findings:
        title = _escaped(f"{finding.code} {find_rule(finding.code).name}", inside=True)
        message = f"{finding.place}: {finding.message}" + (f" (fix: {finding.fix})" if finding.fix else "")
        command = _GITHUB_COMMANDS[finding.severity]
        lines.append(
            f"::{command} file={_escaped(shown.model.as_posix(), inside=True)},title={title}::{_escaped(message)}"
        )
    return "\n".join([*lines, _count(shown)])


FORMATS: dict[str, Callable[[Shown], str]] = {"json": as_json, "sarif": as_sarif, "github": as_github}


def _sarif_rule(code: str) -> dict[str, Any]:
    rule = find_rule(code)
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "help": {"text": explain(rule), "markdown": explain(rule)},
    }


def _sarif_result(finding: Finding, rule_index: int, model: Path) -> dict[str, Any]:
    message = finding.message + (f" Fix: {finding.fix}" if finding.fix else "")
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": quote(model.as_posix())}}}
    if finding.place.kind is not PlaceKind.MODEL:
        location["logicalLocations"] = [{"fullyQualifiedName": str(finding.place), "kind": str(finding.place.kind)}]
    return {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": str(finding.severity),
        "message": {"text": message},
        "locations": [location],
        "properties": {"place": to_builtins(finding.place), "numbers": to_builtins(finding.numbers)},
    }


def _escaped(text: str, *, inside: bool = False) -> str:
    """Escape text for a workflow command; ``inside`` a property also colon and comma, which are separators there."""
    marks = {"%": "%25", "\r": "%0D", "\n": "%0A", **({":": "%3A", ",": "%2C"} if inside else {})}
    return "".join(marks.get(character, character) for character in text)


def _count(shown: Shown) -> str:
    findings = shown.findings
    counts = Counter(finding.severity for finding in findings)
    kinds = [f"{counts[s]} {s}{'s' if counts[s] > 1 else ''}" for s in Severity if counts[s]]
    total = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}"
    allowed = f" ({len(shown.allowed)} more allowed)" if shown.allowed else ""
    return f"{total} in {shown.model.name} for {shown.target}{': ' if kinds else ''}{', '.join(kinds)}{allowed}"
