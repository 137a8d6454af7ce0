"""What a rule is: a code, a name, a function that finds, and a docstring that says everything else.

A rule is written once::

    @rule("Q602")
    def rank_beyond_target(subject: Subject) -> Iterator[Finding]:
        '''Tensors have more dimensions than the target takes.

        ## What it finds
        ...
        '''

What only a compiler can find has no function, but is explained in the same way::

    NODE_REFUSED = explanation("Q801", "node_refused_by_compiler", '''...''')

The name reads after "allow ...". The docstring has a first sentence and the four ``HEADINGS``; ``dovetail explain``,
the page under ``docs/rules`` and the report are made from it.
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

# The first digit of a code says what a rule is about.
FAMILIES: Mapping[str, str] = {
    "Q1": "dtypes and kernels",
    "Q2": "granularity",
    "Q3": "sharing",
    "Q4": "placement and fusion",
    "Q5": "ranges and numerics",
    "Q6": "shapes and rank",
    "Q7": "encodings files and SDK versions",
    "Q8": "what a compiler said",
}

# Codes of rules that are gone, with what to read instead: a code is never reused, because people write codes down.
RETIRED: Mapping[str, str] = {}

Check = Callable[[CheckInput], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; ``check`` is None where only the target's compiler can find it."""

    code: str
    name: str
    check: Check | None
    summary: str
    sections: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RetiredCode:
    """A code of an earlier version that stood for several things: what to read instead, and by what a message says
    (a pattern, the first that is found) the code that it has now."""

    code: str
    instead: str
    now: tuple[tuple[str, str], ...]


_REGISTERED: dict[str, Rule] = {}


def rule(code: str) -> Callable[[Check], Check]:
    """Register a function as the rule with this code; a code or name that is taken or a wrong docstring is refused."""

    def register(check: Check) -> Check:
        _register(code, check.__name__, check, inspect.getdoc(check) or "")
        return check

    return register


def explanation(code: str, name: str, text: str) -> str:
    """Register what only a compiler can find, explained under the same headings; gives the code back."""
    _register(code, name, None, inspect.cleandoc(text))
    return code


def _register(code: str, name: str, check: Check | None, text: str) -> None:
    if not re.fullmatch(r"Q\d{3}", code) or code[:2] not in FAMILIES:
        raise ValueError(f"rule {name}: {code!r} is not a code such as Q501 of a family that exists")
    if code in RETIRED or code in _REGISTERED or any(name == other.name for other in _REGISTERED.values()):
        raise ValueError(f"rule {code} {name}: the code or the name is taken, and neither is ever reused")
    summary, sections = parse_doc(f"rule {code} {name}", text)
    _REGISTERED[code] = Rule(code, name, check, summary, sections)


def rules_in(*modules: ModuleType) -> tuple[Rule, ...]:
    """The rules that these modules hold, and what they explain of a compiler, by code."""
    codes = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    names = {module.__name__ for module in modules}
    return tuple(
        rule
        for code, rule in sorted(_REGISTERED.items())
        if (code in codes if rule.check is None else rule.check.__module__ in names)
    )


def parse_doc(what: str, text: str) -> tuple[str, dict[str, str]]:
    """A rule's docstring -> its first sentence, and the text under each of the four headings."""
    summary, *parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    headings = tuple(heading.strip() for heading in parts[::2])
    if headings != HEADINGS:
        raise ValueError(f"{what}: the docstring has the headings {headings}, it must have {HEADINGS}")
    sections = {heading: body.strip() for heading, body in zip(headings, parts[1::2], strict=True)}
    empty = next((heading for heading, body in sections.items() if not body), None)
    if empty is not None or not summary.strip():
        raise ValueError(f"{what}: the docstring says nothing under {empty or 'its first line'!r}")
    return summary.strip(), sections
