"""All rules: the generic ones and those of every target."""

from __future__ import annotations

from dovetail.rules.catalog import all_rules, find_rule
from dovetail.rules.rule import Rule
from dovetail.target import Target

__all__ = ["all_rules", "find_rule", "rules_for"]


def rules_for(target: Target) -> tuple[Rule, ...]:
    """The rules that hold for a target."""
    return tuple(rule for rule in all_rules() if rule.applies_to(target.name))
