"""The documentation of the rules, generated from docstrings and cases: ``python -m dovetail.rule_docs docs/rules``."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

from dovetail.catalog import all_rules, families_with
from dovetail.rules.rule import FAMILIES, HEADINGS, Rule

INDEX = "README.md"


def explain(rule: Rule) -> str:
    """Return a rule in Markdown, from its docstring alone."""
    targets = ", ".join(families_with(rule)) or "all targets"
    about = f"Category: {FAMILIES[rule.code[:2]]}. Applies to: {targets}."
    about += "" if rule.check is not None else " Found by a run that compiles; `dovetail check` cannot."
    parts = [f"# {rule.code} {rule.name}", rule.summary, about]
    parts += [f"## {heading}\n\n{rule.sections[heading]}" for heading in HEADINGS]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return every page by file name: one per rule, with its cases, and the index."""
    rules = all_rules()
    rows = [f"| [{rule.code}]({rule.code}.md) | `{rule.name}` | {rule.summary} |" for rule in rules]
    index = ["# Rules", _MADE, "\n".join(["| code | allow ... | |", "|---|---|---|", *rows])]
    rule_pages = {f"{rule.code}.md": f"{explain(rule)}\n{_cases(rule)}{_MADE}\n" for rule in rules}
    return {INDEX: "\n\n".join(index) + "\n", **rule_pages}


def write_pages(folder: Path) -> None:
    """Write every page, and remove the pages of rules that no longer exist."""
    folder.mkdir(parents=True, exist_ok=True)
    current = pages()
    for old in folder.glob("Q*.md"):
        if old.name not in current:
            old.unlink()
    for name, text in current.items():
        (folder / name).write_text(text, encoding="utf-8")


def case_texts(code: str, kind: str) -> dict[str, str]:
    """Return a rule's ``bad`` or ``good`` cases in ONNX text, by file name."""
    folder = resources.files("dovetail.rules").joinpath("cases")
    files = [file for file in folder.iterdir() if file.name.startswith(f"{code}.{kind}.")]
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(files, key=lambda file: file.name)}


def _cases(rule: Rule) -> str:
    if rule.check is None:
        return ""
    parts = ["## Cases"]
    for kind, heading in (("bad", "Found:"), ("good", "Not found:")):
        parts += [f"{heading}\n\n```text\n{text.strip()}\n```" for text in case_texts(rule.code, kind).values()]
    return "\n\n".join(parts) + "\n\n"


_MADE = "*Made by `python -m dovetail.rule_docs docs/rules` from the docstrings of the rules.*"

if __name__ == "__main__":
    write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/rules"))
