"""Tests of all rules: cases that fire and cases that do not, complete docstrings, up-to-date documentation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import rule_docs as docs
from dovetail.catalog import all_rules, families_with, rules_for
from dovetail.rules import rule as rule_module
from dovetail.rules.generic import GENERIC
from dovetail.rules.rule import CATEGORIES, HEADINGS, RETIRED, Rule, parse_doc
from dovetail.targets import open_target
from tests.rules.cases import codes_in, findings_in

RULES = all_rules()
CHECKED = [rule for rule in RULES if rule.check is not None]
SOURCES = Path(docs.__file__).parent
CASES = SOURCES / "rules" / "cases"
PAGES = Path(__file__).parents[2] / "docs" / "rules"


def _cases(kind: str) -> list[Any]:
    texts = [(rule.code, docs.case_texts(rule.code, kind)) for rule in CHECKED]
    return [pytest.param(code, text, id=name) for code, cases in texts for name, text in cases.items()]


@pytest.mark.parametrize(("code", "text"), _cases("bad"))
def test_bad_case_fires(code: str, text: str, tmp_path: Path) -> None:
    findings = findings_in(text, tmp_path)
    assert code in codes_in(findings)
    for finding in findings:
        assert str(finding.place)
        assert finding.message
        assert finding.fix


@pytest.mark.parametrize(("code", "text"), _cases("good"))
def test_good_case_does_not_fire(code: str, text: str, tmp_path: Path) -> None:
    assert code not in codes_in(findings_in(text, tmp_path))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_rule_is_complete(rule: Rule) -> None:
    cases = [docs.case_texts(rule.code, kind) for kind in ("bad", "good")]
    if rule.check is None:  # these have recorded compiler logs in tests/rules/test_compiler_findings.py
        assert not any(cases)
    else:
        assert all(cases)
        assert parse_doc(rule.code, inspect.getdoc(rule.check) or "") == (rule.summary, rule.sections)
    assert tuple(rule.sections) == HEADINGS
    assert rule.code[:2] in CATEGORIES
    assert rule.code not in RETIRED


def test_codes_and_names_are_unique() -> None:
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES) > 0


def test_every_case_belongs_to_a_rule() -> None:
    codes = {rule.code for rule in CHECKED}
    names = [path.name for path in CASES.iterdir()]
    assert names
    for name in names:
        code, kind, *number, suffix = name.split(".")
        assert (code in codes, kind in ("bad", "good"), suffix) == (True, True, "onnxtxt"), name
        assert all(part.isdigit() for part in number), name


def test_every_module_with_rules_is_in_the_catalog() -> None:
    sources = {str(path.relative_to(SOURCES)): path.read_text() for path in SOURCES.rglob("*.py")}
    codes = {
        code
        for name, text in sources.items()
        if name != "rules/rule.py"
        for code in re.findall(r"""(?:@rule|= explanation)\(\s*"(Q\d{3})\"""", text)
    }
    assert codes == {rule.code for rule in RULES}


def test_documentation_is_current() -> None:
    expected = docs.pages()
    assert {path.name for path in PAGES.glob("*.md")} == set(expected), "run python -m dovetail.rule_docs docs/rules"
    for name, text in expected.items():
        assert (PAGES / name).read_text(encoding="utf-8") == text, (
            f"{name}: run python -m dovetail.rule_docs docs/rules"
        )


def test_lists_in_other_documents_are_current() -> None:
    documents = {path: path.read_text(encoding="utf-8") for path in PAGES.parent.glob("*.md")}
    assert any("<!-- miscompilations:" in text for text in documents.values())
    for path, text in documents.items():
        assert docs.with_lists(text) == text, f"{path.name}: run python -m dovetail.rule_docs docs/rules"


def test_a_list_has_the_rules_with_a_case_that_is_computed_wrongly(tmp_path: Path) -> None:
    text = "Before.\n<!-- miscompilations: qnn-htp -->\nold\n<!-- end of miscompilations -->\nAfter.\n"
    (tmp_path / "page.md").write_text(text)
    docs.write_lists(tmp_path)
    written = (tmp_path / "page.md").read_text()
    assert "old" not in written
    assert (written.startswith("Before."), written.endswith("After.\n")) == (True, True)
    assert "Q541" in written
    assert "Q603" not in written


def test_pages_of_removed_rules_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "Q999.md").write_text("old")
    (tmp_path / "notes.md").write_text("mine")
    docs.write_pages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*docs.pages(), "notes.md"}


DOC = "Says something.\n\n" + "\n\n".join(f"## {heading}\nText." for heading in HEADINGS)


@pytest.mark.parametrize(
    ("code", "name", "doc", "message"),
    [
        ("Q501", "fresh", DOC, "already taken"),
        ("Q598", RULES[0].name, DOC, "already taken"),
        ("Q598", "fresh", DOC.replace("## Seen on", "## Seen"), "headings"),
        ("Q598", "fresh", DOC.removesuffix("Text."), "no text for 'Seen on'"),
        ("Q598", "fresh", DOC.removeprefix("Says something."), "no text for 'the summary'"),
        ("Q998", "fresh", DOC, "of a known category"),
        ("501", "fresh", DOC, "of a known category"),
    ],
)
def test_malformed_rule_is_an_error(code: str, name: str, doc: str, message: str) -> None:
    def check(subject: Any) -> Iterator[Any]:
        yield from ()

    check.__name__, check.__doc__ = name, doc
    with pytest.raises(ValueError, match=message):
        rule_module.rule(code)(check)
    with pytest.raises(ValueError, match=message):
        rule_module.explanation(code, name, doc)
    assert all_rules() == RULES


def test_retired_code_is_never_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh(subject: Any) -> Iterator[Any]:
        yield from ()

    fresh.__doc__ = DOC
    monkeypatch.setattr(rule_module, "RETIRED", {"Q598": "see Q501"})
    with pytest.raises(ValueError, match="already taken"):
        rule_module.rule("Q598")(fresh)


def test_a_target_has_the_generic_rules_and_its_own() -> None:
    of_htp = {rule.code for rule in rules_for(open_target("qnn-htp"))}
    of_cpu = {rule.code for rule in rules_for(open_target("ort-cpu"))}
    of_all = {rule.code for rule in GENERIC}
    assert of_cpu == {*of_all, "Q151"}
    assert of_all < of_htp
    of_htp_families = {("qnn-htp",), ("qnn-htp", "qairt"), ("qairt",)}
    assert {families_with(rule) for rule in RULES} == {(), *of_htp_families, ("ort-cpu",), ("tensorrt",), ("xnnpack",)}
