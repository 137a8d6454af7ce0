"""A rule: a code, a name, a function that yields findings, and a docstring that documents it.

A rule is a decorated function::

    @rule("Q602")
    def rank_above_target_limit(subject: CheckInput) -> Iterator[Finding]:
        '''A tensor has more dimensions than the target supports.

        ## What it finds
        ...
        '''

A problem that only a compiler can find has no function, but is documented in the same way::

    NODE_REJECTED = explanation("Q801", "node_rejected_by_compiler", '''...''')

The name reads after "allow ...". The docstring has a summary and the four ``HEADINGS``; ``dovetail explain``, the page
under ``docs/rules`` and the report are generated from it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

from dovetail.finding import Finding
from dovetail.rules.check_input import CheckInput

HEADINGS = ("What it finds", "Why it matters", "How to fix it", "Seen on")

# The first digit of a code is the rule's category.
CATEGORIES: Mapping[str, str] = {
    "Q1": "dtypes and kernels",
    "Q2": "granularity",
    "Q3": "sharing",
    "Q4": "placement and fusion",
    "Q5": "ranges and numerics",
    "Q6": "shapes and rank",
    "Q7": "encodings files and SDK versions",
    "Q8": "compiler messages",
}

# Codes of removed rules, with what to read instead. A code is never reused: it may be in users' reports and scripts.
RETIRED: Mapping[str, str] = {}

Check = Callable[[CheckInput], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; ``check`` is None if only the target's compiler can find the problem."""

    code: str
    name: str
    check: Check | None
    summary: str
    sections: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RetiredCode:
    """A code of an earlier version that covered several problems and was split.

    ``instead``: what to read now. ``now``: (pattern, code) pairs; the first pattern that matches the message of an old
    finding gives its new code.
    """

    code: str
    instead: str
    now: tuple[tuple[str, str], ...]


_REGISTERED: dict[str, Rule] = {}


def rule(code: str) -> Callable[[Check], Check]:
    """Register a function as the rule with this code; a duplicate code or name or a malformed docstring is an error."""

    def register(check: Check) -> Check:
        _register(code, check.__name__, check, inspect.getdoc(check) or "")
        return check

    return register


def explanation(code: str, name: str, text: str) -> str:
    """Register the documentation of a problem that only a compiler can find, and return its code."""
    _register(code, name, None, inspect.cleandoc(text))
    return code


def _register(code: str, name: str, check: Check | None, text: str) -> None:
    if not re.fullmatch(r"Q\d{3}", code) or code[:2] not in CATEGORIES:
        raise ValueError(
            f"rule {name}: {code!r} is not a valid code; expected Q and three digits, of a known category, as in Q501"
        )
    if code in RETIRED or code in _REGISTERED or any(name == known.name for known in _REGISTERED.values()):
        raise ValueError(f"rule {code} {name}: the code or the name is already taken, and neither is ever reused")
    summary, sections = parse_doc(f"rule {code} {name}", text)
    _REGISTERED[code] = Rule(code, name, check, summary, sections)


def rules_in(*modules: ModuleType) -> tuple[Rule, ...]:
    """Return the rules and compiler explanations that these modules define, sorted by code."""
    codes = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    names = {module.__name__ for module in modules}
    return tuple(
        rule
        for code, rule in sorted(_REGISTERED.items())
        if (code in codes if rule.check is None else rule.check.__module__ in names)
    )


def parse_doc(label: str, text: str) -> tuple[str, dict[str, str]]:
    """Split a rule's docstring into its summary and the text under each of the four headings."""
    summary, *rest = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    headings = tuple(heading.strip() for heading in rest[::2])
    if headings != HEADINGS:
        raise ValueError(f"{label}: the docstring has the headings {headings}, expected {HEADINGS}")
    sections = {heading: body.strip() for heading, body in zip(headings, rest[1::2], strict=True)}
    empty = next((heading for heading, body in sections.items() if not body), None)
    if empty is not None or not summary.strip():
        raise ValueError(f"{label}: the docstring has no text for {empty or 'the summary'!r}")
    return summary.strip(), sections
