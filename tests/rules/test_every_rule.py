"""What holds for every rule: cases that fire it and cases that do not, a whole docstring, current documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.rules import docs
from dovetail.rules import rule as rule_module
from dovetail.rules.catalog import MODULES, all_rules
from dovetail.rules.rule import FAMILIES, HEADINGS, RETIRED, Rule, parse_doc
from dovetail.targets import FAMILIES as TARGETS
from tests.rules.cases import codes_in, findings_in

RULES = all_rules()
CHECKED = [rule for rule in RULES if rule.check is not None]
SOURCES = Path(docs.__file__).parent
PAGES = Path(__file__).parents[2] / "docs" / "rules"


def _cases(kind: str) -> list[Any]:
    texts = [(rule.code, docs.case_texts(rule.code, kind)) for rule in CHECKED]
    return [pytest.param(code, text, id=name) for code, each in texts for name, text in each.items()]


@pytest.mark.parametrize(("code", "text"), _cases("bad"))
def test_bad_case_fires(code: str, text: str, tmp_path: Path) -> None:
    findings = findings_in(text, tmp_path)
    assert code in codes_in(findings)
    for finding in findings:
        assert str(finding.place)
        assert finding.message
        assert finding.fix


@pytest.mark.parametrize(("code", "text"), _cases("good"))
def test_good_case_does_not(code: str, text: str, tmp_path: Path) -> None:
    assert code not in codes_in(findings_in(text, tmp_path))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_rule_is_whole(rule: Rule) -> None:
    cases = [docs.case_texts(rule.code, kind) for kind in ("bad", "good")]
    if rule.check is None:  # tests/rules/test_compiler_findings.py has what the compiler said
        assert not any(cases)
    else:
        assert all(cases)
        assert parse_doc(rule.code, inspect.getdoc(rule.check) or "") == (rule.summary, rule.sections)
    assert tuple(rule.sections) == HEADINGS
    assert rule.code[:2] in FAMILIES
    assert rule.code not in RETIRED
    assert set(rule.targets) <= set(TARGETS)


def test_codes_and_names_are_unique() -> None:
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES) > 0


def test_every_case_belongs_to_a_rule() -> None:
    codes = {rule.code for rule in CHECKED}
    names = [path.name for path in (SOURCES / "cases").iterdir()]
    assert names
    for name in names:
        code, kind, *number, suffix = name.split(".")
        assert (code in codes, kind in ("bad", "good"), suffix) == (True, True, "onnxtxt"), name
        assert all(part.isdigit() for part in number), name


def test_every_module_with_rules_is_in_the_catalog() -> None:
    listed = {Path(module.__file__ or "").name for module in MODULES}
    texts = {path.name: path.read_text() for path in SOURCES.glob("*.py")}
    found = {name for name, text in texts.items() if "\n@rule(" in text or "= explanation(\n" in text}
    assert found == listed


def test_documentation_is_current() -> None:
    expected = docs.pages()
    assert {path.name for path in PAGES.glob("*.md")} == set(expected), "run python -m dovetail.rules.docs docs/rules"
    for name, text in expected.items():
        assert (PAGES / name).read_text(encoding="utf-8") == text, (
            f"{name}: run python -m dovetail.rules.docs docs/rules"
        )


def test_pages_of_gone_rules_are_removed(tmp_path: Path) -> None:
    (tmp_path / "Q999.md").write_text("old")
    (tmp_path / "notes.md").write_text("mine")
    docs.write_pages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*docs.pages(), "notes.md"}


DOC = "Says something.\n\n" + "\n\n".join(f"## {heading}\nText." for heading in HEADINGS)


@pytest.mark.parametrize(
    ("code", "name", "doc", "words"),
    [
        ("Q501", "fresh", DOC, "taken"),
        ("Q598", RULES[0].name, DOC, "taken"),
        ("Q598", "fresh", DOC.replace("## Seen on", "## Seen"), "headings"),
        ("Q598", "fresh", DOC.removesuffix("Text."), "says nothing under 'Seen on'"),
        ("Q598", "fresh", DOC.removeprefix("Says something."), "says nothing under 'its first line'"),
        ("Q998", "fresh", DOC, "family"),
        ("501", "fresh", DOC, "family"),
    ],
)
def test_wrong_rule_is_refused(code: str, name: str, doc: str, words: str) -> None:
    def check(subject: Any) -> Iterator[Any]:
        yield from ()

    check.__name__, check.__doc__ = name, doc
    with pytest.raises(ValueError, match=words):
        rule_module.rule(code)(check)
    with pytest.raises(ValueError, match=words):
        rule_module.explanation(code, name, doc, targets=())
    assert all_rules() == RULES


def test_retired_code_is_never_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh(subject: Any) -> Iterator[Any]:
        yield from ()

    fresh.__doc__ = DOC
    monkeypatch.setattr(rule_module, "RETIRED", {"Q598": "Q501 says it"})
    with pytest.raises(ValueError, match="taken"):
        rule_module.rule("Q598")(fresh)


def test_rule_for_some_targets() -> None:
    only = Rule("Q598", "fresh", RULES[0].check, "Says something.", {}, targets=("qnn-htp",))
    assert only.applies_to("qnn-htp")
    assert only.applies_to("qnn-htp:sm8550")
    assert not only.applies_to("ort-cpu")
