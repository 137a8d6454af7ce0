"""All rules: the generic ones, and those of every target."""

from __future__ import annotations

from dovetail.errors import InputError
from dovetail.rules.generic import GENERIC
from dovetail.rules.rule import RETIRED, RetiredCode, Rule
from dovetail.target import Target
from dovetail.targets import FAMILIES, family_named


def rules_for(target: Target) -> tuple[Rule, ...]:
    """The generic rules and those of a target."""
    return (*GENERIC, *target.rules)


def all_rules() -> tuple[Rule, ...]:
    """Every rule, sorted by code."""
    rules = {rule.code: rule for rule in GENERIC}
    for name in FAMILIES:
        rules |= {rule.code: rule for rule in family_named(name).rules}
    return tuple(rules[code] for code in sorted(rules))


def families_with(rule: Rule) -> tuple[str, ...]:
    """The target families that a rule belongs to; none if it is generic."""
    return tuple(name for name in FAMILIES if rule in family_named(name).rules)


def retired_codes() -> tuple[RetiredCode, ...]:
    """Codes of earlier versions that were replaced by several codes."""
    return tuple(retired for name in FAMILIES for retired in family_named(name).retired)


def find_rule(code: str) -> Rule:
    """Return the rule with a code, in upper or lower case; a retired or unknown code is refused."""
    upper = code.upper()
    replacements = {retired.code.upper(): retired.instead for retired in retired_codes()} | dict(RETIRED)
    if upper in replacements:
        raise InputError(f"rule {upper} is retired: {replacements[upper]}")
    rule = next((rule for rule in all_rules() if rule.code == upper), None)
    if rule is None:
        raise InputError(f"unknown rule {code!r}; `dovetail explain` lists all rules")
    return rule
