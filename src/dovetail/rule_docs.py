"""The documentation of the rules, generated from docstrings and cases: ``python -m dovetail.rule_docs docs/rules``.

The documents in the folder above have lists that are generated as well, between markers.
"""

from __future__ import annotations

import functools
import re
import sys
from importlib import resources
from pathlib import Path

from dovetail.catalog import all_rules, families_with
from dovetail.rules.rule import CATEGORIES, HEADINGS, Rule

INDEX = "README.md"
DIFFERS = "differs"
# The results in the line ``# compiled: ...`` of a case, and what they mean.
COMPILED = {
    "as planned": "the compiled model has the planned dtypes and the expected outputs",
    "changed": "accepted, but an operator or tensor has another dtype or kernel than planned",
    DIFFERS: "accepted, but the outputs differ from the simulation",
    "rejected": "rejected by the compiler or, on loading, by the runtime",
    "rejected in float16": "rejected once its scales are converted to float16",
    "accepted": "accepted, although ONNX Runtime does not load the file",
    "ignored": "the compiled model is the same without the faulty attribute",
    "not lowered": "an operator has no lowering for the target",
    "not delegated": "lowered, but no node is delegated to the target's backend",
    "slower": "as planned, but by the vendor's estimate it takes longer than the graph that is not reported",
    "more layers": "as planned, but the compiled model has more layers than that of the graph that is not reported",
    "inaccurate": "as planned, but the outputs are far from those of the float graph",
}
_BIT_PATTERN = re.compile(r"\bfloat(16|8\w+)(\[[\d, ]*\])? \w+ = \{")  # a float16 or float8 constant in ONNX text
# The part of a document that lists what a target's compiler computes wrongly without an error.
_LIST = re.compile(r"(<!-- miscompilations: (\S+) -->\n).*?(<!-- end of miscompilations -->)", re.DOTALL)
_RESULT = re.compile(r"^# compiled: (.+)$", re.MULTILINE)


def explain(rule: Rule) -> str:
    """Return a rule in Markdown, from its docstring alone."""
    targets = ", ".join(families_with(rule)) or "all targets"
    about = f"Category: {CATEGORIES[rule.code[:2]]}. Applies to: {targets}."
    about += "" if rule.check is not None else " Found by a run that compiles; `dovetail check` cannot."
    parts = [f"# {rule.code} {rule.name}", rule.summary, about]
    parts += [f"## {heading}\n\n{rule.sections[heading]}" for heading in HEADINGS]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return every page by file name: one per rule, with its cases, and the index."""
    rules = all_rules()
    rows = [f"| [{rule.code}]({rule.code}.md) | `{rule.name}` | {rule.summary} |" for rule in rules]
    index = ["# Rules", _MADE, "\n".join(["| code | name | what it finds |", "|---|---|---|", *rows])]
    rule_pages = {f"{rule.code}.md": f"{explain(rule)}\n{_cases(rule)}{_MADE}\n" for rule in rules}
    return {INDEX: "\n\n".join(index) + "\n", **rule_pages}


def miscompilations(family: str) -> str:
    """The rules of a target family with a case that is compiled without an error and computes something else."""
    rules = [rule for rule in all_rules() if family in families_with(rule) and DIFFERS in _bad_results(rule)]
    return "\n\n".join(
        f"### [{rule.code}](rules/{rule.code}.md) `{rule.name}`\n\n{rule.summary}\n\n"
        f"*Workaround:* {rule.sections['How to fix it']}\n\n*Seen on:*\n\n{rule.sections['Seen on']}"
        for rule in rules
    )


def with_lists(text: str) -> str:
    """A document with every list of miscompilations between its markers made again from the rules."""
    return _LIST.sub(lambda match: f"{match[1]}\n{miscompilations(match[2])}\n\n{match[3]}", text)


def _bad_results(rule: Rule) -> set[str]:
    """What the target's compiler does with the bad cases of a rule."""
    return {match[1] for text in case_texts(rule.code, "bad").values() if (match := _RESULT.search(text))}


def write_lists(folder: Path) -> None:
    """Bring the lists in the documents of a folder up to date."""
    for path in folder.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        if with_lists(text) != text:
            path.write_text(with_lists(text), encoding="utf-8")


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
    start = f"{code}.{kind}."
    return {name: text for name, text in _all_case_texts().items() if name.startswith(start)}


@functools.cache
def _all_case_texts() -> dict[str, str]:
    """The cases of all rules, by file name."""
    files = resources.files("dovetail.rules").joinpath("cases").iterdir()
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(files, key=lambda file: file.name)}


def _cases(rule: Rule) -> str:
    if rule.check is None:
        return ""
    texts = {kind: case_texts(rule.code, kind) for kind in ("bad", "good")}
    every = [text for cases in texts.values() for text in cases.values()]
    results = sorted({match[1] for text in every if (match := _RESULT.search(text))}, key=list(COMPILED).index)
    parts = ["## Cases"]
    if results:
        meanings = "".join(f"\n- *{result}*: {COMPILED[result]}" for result in results)
        parts.append(f"`compiled` is what the target's compiler does with the graph:\n{meanings}")
    if any(_BIT_PATTERN.search(text) for text in every):
        parts.append(
            "Constants in float16 and float8 are written as bit patterns, as ONNX text requires: float16 8200 is 1/127."
        )
    for kind, heading in (("bad", "Reported:"), ("good", "Not reported:")):
        parts += [f"{heading}\n\n```text\n{text.strip()}\n```" for text in texts[kind].values()]
    return "\n\n".join(parts) + "\n\n"


_MADE = "*Made by `python -m dovetail.rule_docs docs/rules` from the docstrings of the rules.*"

if __name__ == "__main__":
    pages_folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/rules")
    write_pages(pages_folder)
    write_lists(pages_folder.parent)
