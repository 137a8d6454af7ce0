"""All rules: those that hold everywhere, and those of every target."""

from __future__ import annotations

from dovetail.errors import InputError
from dovetail.rules.generic import GENERIC
from dovetail.rules.rule import RETIRED, RetiredCode, Rule
from dovetail.target import Target
from dovetail.targets import FAMILIES, family_named


def rules_for(target: Target) -> tuple[Rule, ...]:
    """The rules that hold for a target."""
    return (*GENERIC, *target.rules)


def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    known = {rule.code: rule for rule in GENERIC}
    for name in FAMILIES:
        known |= {rule.code: rule for rule in family_named(name).rules}
    return tuple(known[code] for code in sorted(known))


def families_with(rule: Rule) -> tuple[str, ...]:
    """The target families that a rule is for; none where it holds everywhere."""
    return tuple(name for name in FAMILIES if rule in family_named(name).rules)


def retired_codes() -> tuple[RetiredCode, ...]:
    """Codes of earlier versions that stood for several things."""
    return tuple(one for name in FAMILIES for one in family_named(name).retired)


def find_rule(code: str) -> Rule:
    """The rule with a code, in either case of letter; a retired or unknown one is refused."""
    wanted = code.upper()
    retired = {one.code.upper(): one.instead for one in retired_codes()} | dict(RETIRED)
    if wanted in retired:
        raise InputError(f"rule {wanted} is retired: {retired[wanted]}")
    found = next((each for each in all_rules() if each.code == wanted), None)
    if found is None:
        raise InputError(f"there is no rule {code!r}; `dovetail explain` lists all")
    return found
