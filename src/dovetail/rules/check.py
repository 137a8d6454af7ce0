"""Run rules on a model."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.finding import Finding
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import Rule


def check(subject: CheckInput, rules: Iterable[Rule]) -> tuple[Finding, ...]:
    """Return the findings of these rules, sorted by code and then in graph order."""
    ordered = sorted(rules, key=lambda rule: rule.code)
    return tuple(finding for rule in ordered if rule.check is not None for finding in rule.check(subject))
