"""The facts about the SDK as a table of a document: ``python -m dovetail.targets.qairt.fact_table docs/qairt.md``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from dovetail.targets.qairt.facts import facts_about
from dovetail.targets.qairt.sdk import Subject

_TABLE = re.compile(r"(<!-- facts -->\n).*?(<!-- end of facts -->)", re.DOTALL)


def fact_table() -> str:
    """Every row: the question, the versions, the answer with what happens, the source and the confidence."""
    lines = ["| does this SDK ... | QAIRT | answer | source | how it is known |", "|---|---|---|---|---|"]
    for row in facts_about(*Subject):
        cells = (row.subject, row.versions, f"**{row.answer}**. {row.text}", row.source, row.confidence)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """A document with the table between its markers made again."""
    return _TABLE.sub(lambda match: f"{match[1]}\n{fact_table()}\n\n{match[2]}", text)


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(with_table(document.read_text(encoding="utf-8")), encoding="utf-8")
