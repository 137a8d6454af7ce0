"""What a rule says about a backend that is installed here is shown by a test on that backend.

A line of ``Seen on`` names a backend. It is shown by cases of the rule whose head says what that backend does with
them, which the backend's tests compile and run, or by a test that the line names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dovetail import rule_docs as docs
from dovetail.catalog import all_rules
from dovetail.rules.rule import Rule
from dovetail.targets import FAMILIES
from tests.rules.cases import head_of

ROOT = Path(__file__).parents[2]
# Families without a compiler on any package registry: their facts come from public reports, with the source.
NOT_INSTALLED = {"qairt"}
AS_PLANNED = "as planned"


def lines_of(rule: Rule) -> list[tuple[str, str]]:
    """The lines of ``Seen on``: the backend (or what else it is about), and the text."""
    items = re.split(r"^- ", rule.sections["Seen on"], flags=re.MULTILINE)[1:]
    return [(backend, " ".join(text.split())) for backend, _, text in (item.partition(":") for item in items)]


def statements() -> list[Any]:
    return [
        pytest.param(rule, backend, text, id=f"{rule.code}-{backend}-{number}")
        for rule in all_rules()
        for number, (backend, text) in enumerate(lines_of(rule))
        if backend in FAMILIES and backend not in NOT_INSTALLED
    ]


def results_of(rule: Rule, backend: str, kind: str) -> set[str]:
    """What the backend does with the cases of the rule that its tests compile."""
    heads = [head_of(text) for text in docs.case_texts(rule.code, kind).values()]
    return {head["compiled"] for head in heads if head.get("target", "").startswith(backend) and "compiled" in head}


@pytest.mark.parametrize(("rule", "backend", "text"), statements())
def test_a_statement_about_a_backend_is_shown_by_a_test(rule: Rule, backend: str, text: str) -> None:
    named = re.findall(r"tests/[\w/]+\.py", text)
    for name in named:
        assert rule.code in (ROOT / name).read_text(), f"{name} does not mention {rule.code}"
    bad = results_of(rule, backend, "bad")
    if bad:
        compiles = ROOT / "tests" / "backends" / backend.replace("-", "_") / "test_rules.py"
        assert "cases_of" in compiles.read_text() or "case_texts" in compiles.read_text()
        assert AS_PLANNED not in bad or "not reproduced" in text
        assert any(results_of(rule, family, "good") for family in FAMILIES)
    assert bad or named, f"{rule.code} says something about {backend}, but no case and no test shows it"


def test_every_line_names_a_backend_or_how_else_it_is_known() -> None:
    others = {backend for rule in all_rules() for backend, _ in lines_of(rule) if backend not in FAMILIES}
    assert others == {"every target, by arithmetic", "onnxruntime 1.31.1"}


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_facts_of_a_backend_that_is_not_installed_have_a_source(rule: Rule) -> None:
    for backend, text in lines_of(rule):
        if backend in NOT_INSTALLED:
            assert re.search(r"public|github\.com|inferred|not known|extrapolated|stated|documented", text), text
