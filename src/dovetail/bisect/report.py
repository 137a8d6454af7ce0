"""The page about a failing part: what happens, where, with which versions, and how to see it without Dovetail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.bisect.attempts import Attempt
from dovetail.bisect.search import FailingPart
from dovetail.printable import one_line
from dovetail.sweep.outcome import FailureKind

_KINDS = {
    FailureKind.REFUSED: "refused by the compiler of",
    FailureKind.UNFINISHED: "not compiled to the end for",
    FailureKind.WRONG: "computed incorrectly on",
    FailureKind.CHANGED: "compiled, but not as planned, for",
}
_ERROR = re.compile(r"\b(error|failed|unsupported|rejected|incorrect)\b|<E>|REASON", re.IGNORECASE)
_COLORS, _TIME = re.compile(r"\x1b\[[0-9;]*m"), re.compile(r"^\d{4}-\d\d-\d\d [\d:.]+ ")
_LOG_LINES, _LOG_WIDTH = 20, 300


@dataclass(frozen=True, slots=True)
class ReportCase:
    """What a report is about: the caller's file and its hash, the target, how it was quantized, and the versions."""

    model: str
    sha256: str
    target: str
    precision: str
    options: Mapping[str, str]
    data: str
    versions: Mapping[str, str]
    command: str
    log: str
    script: bool


def report_text(found: FailingPart, case: ReportCase, tried: Sequence[Attempt]) -> str:
    """The report, in Markdown."""
    operators = ", ".join(operator for operator, _ in found.nodes)
    sections = [
        f"# {operators}: {_KINDS[found.failure.kind]} {case.target}",
        _what(found, case),
        _where(found, case),
        _files(found, case),
        _attempts(tried),
        f"## Versions\n\n{_rows(('package', 'version'), case.versions.items())}",
        _log(case.log) if found.failure.kind in (FailureKind.REFUSED, FailureKind.UNFINISHED) else "",
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _what(found: FailingPart, case: ReportCase) -> str:
    least = "Without any one of its nodes it does not fail." if found.is_minimal else "A smaller part may fail too."
    whole = "" if found.whole.cause == found.failure.cause else f"\n\nThe whole model: {_cell(found.whole.cause)}"
    return (
        f"## What happens\n\n{_cell(found.failure.cause)}{whole}\n\nThis is the smallest part of "
        f"`{_cell(case.model)}` that was found to fail in this way. {least} Compiled graphs: {found.compiled}. "
        f"{_quantized(case)} {case.data}"
    )


def _quantized(case: ReportCase) -> str:
    options = "".join(f", {key}={value}" for key, value in case.options.items())
    how = f"quantized by Dovetail in {case.precision}" if case.precision else "quantized already, compiled as it is"
    return f"The model was {how}{options}."


def _where(found: FailingPart, case: ReportCase) -> str:
    return f"## Where\n\n`{_cell(case.model)}`, SHA-256 `{case.sha256}`\n\n{_rows(('operator', 'node'), found.nodes)}"


def _files(found: FailingPart, case: ReportCase) -> str:
    inputs = [(str(v.name), "x".join(map(str, v.shape or ())), str(v.dtype)) for v in found.model.graph.inputs]
    files = [
        ("part.onnx", "the part of the model"),
        ("part.npz", "values of its inputs, from a run of the whole model"),
        ("model.onnx", "what the compiler gets"),
    ]
    how = f"`{_cell(case.command)}` shows it."
    if case.script:
        files.append(("reproduce.py", "opens model.onnx with the vendor's runtime, as device_session.py says"))
        how = "`python reproduce.py` in this folder shows it, without Dovetail."
    return (
        f"## How to reproduce\n\n{how}\n\n{_rows(('file', 'content'), files)}\n\n"
        f"{_rows(('input', 'shape', 'type'), inputs)}"
    )


def _attempts(tried: Sequence[Attempt]) -> str:
    rows = [(attempt.what, "passes" if not attempt.failure else _short(attempt.failure)) for attempt in tried]
    return f"## What was tried on the part\n\n{_rows(('tried', 'result'), rows)}" if rows else ""


def _log(log: str) -> str:
    plain = list(dict.fromkeys(_TIME.sub("", line) for line in _COLORS.sub("", log).splitlines()))
    lines = [line for line in plain if _ERROR.search(line)] or plain
    text = "\n".join(line[:_LOG_WIDTH] for line in lines[-_LOG_LINES:]).replace("```", "'''")
    return f"## From the compiler's log\n\n```\n{text}\n```" if text else ""


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(str(cell)) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|").replace("`", "'")


def _short(text: str, width: int = 200) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


REPRODUCE = '''"""Shows what report.md describes, without Dovetail: opens model.onnx, and runs one sample."""

import numpy as np
from device_session import open_model, versions

INPUTS = {inputs}
OUTPUTS = {outputs}

print(versions())
with np.load("sample.npz") as arrays:
    sample = {{name: arrays[f"input{{number}}"] for number, name in enumerate(INPUTS)}}
    expected = {{name: arrays[f"output{{number}}"] for number, name in enumerate(OUTPUTS)}}
run = open_model("{model}")  # a graph that is refused ends here, with the compiler's message
for name, array in run(sample).items():
    exact = expected[name].astype(np.float64)
    noise = np.sum((exact - array) ** 2)
    ratio = np.inf if noise == 0 else 10 * np.log10(np.sum(exact**2) / noise)
    print(f"{{name}}: {{ratio:.1f}} dB against the same graph in ONNX Runtime on the CPU")
'''


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    path.write_text(text, encoding="utf-8")
