"""The compiler's log as findings: which node of the caller's model, in the compiler's words, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dovetail.finding import Finding, Severity

CODE = "qnn-htp"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_REFUSED = re.compile(r"Validation FAILED for \d+ nodes? in OrtNodeUnit \((\w+)\)")
_NODE = re.compile(r"Operator type: (\w+) Node name: (.*) Node index: \d+")
_REASON = re.compile(r"REASON : (.*)")
_ERROR = re.compile(r"<E> (.*)")
_FINALIZE = re.compile(r'<E> "?(.*?)"? generated: could not create op')
# Words that say less than is known of them -> what they mean and what to do.
_MEANING: tuple[tuple[str, str], ...] = (
    (r"incorrect Rank [6-9]", "HTP takes tensors up to rank 5: merge dimensions"),
    (r"MEM_ALLOC|Code: 1002", "1002 means that there is no kernel for this combination, not that memory is short"),
    (r"not supported by QNN EP", "there is no such operator on HTP: rewrite it, or keep it out of the model"),
    (r"per-channel", "only weights may have a scale per channel: give activations one scale"),
)


def log_findings(log: str, originals: Mapping[str, str]) -> tuple[Finding, ...]:
    """Every refusal in a log, once; ``originals`` has the caller's names of the nodes."""
    found: dict[tuple[str, str], Finding] = {}
    for node, operator, words in _refusals(_COLOURS.sub("", log).splitlines()):
        fix = next((meaning for pattern, meaning in _MEANING if re.search(pattern, words)), "")
        where = originals.get(node, node)
        message = f"{operator} is refused by the compiler: {words}"
        found.setdefault((where, operator), Finding(CODE, where, message, Severity.ERROR, fix=fix))
    return tuple(found.values())


def _refusals(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """(node, operator, the compiler's words): the last error lines in front of a refusal belong to it."""
    errors: list[str] = []
    for number, line in enumerate(lines):
        if match := _FINALIZE.search(line):
            yield match[1], "node", line[match.start() :]
        elif match := _ERROR.search(line):
            errors.append(match[1].strip())
        elif match := _REFUSED.search(line):
            yield _refused(match[1], lines[number + 1 : number + 20], errors)
            errors.clear()
        elif "Validation PASSED" in line:
            errors.clear()


def _refused(operator: str, following: list[str], errors: list[str]) -> tuple[str, str, str]:
    node, reason = "", ""
    for line in following:
        if (match := _NODE.search(line)) and match[1] == operator:
            node = match[2]
        if match := _REASON.search(line):
            reason = match[1].strip()
            break
    return node, operator, "; ".join(dict.fromkeys([*errors, reason]))
