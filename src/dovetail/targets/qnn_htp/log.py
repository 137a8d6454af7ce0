"""The compiler's log as findings: which node of the caller's model, in the compiler's words, and what to do.

What was refused is said in three forms: by the validation of a node, by adding it to the graph, and by finalizing the
graph. A line of one of these forms that cannot be read, or whose node is not known, is repeated as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dovetail.backend import Artifact, CompileResult
from dovetail.finding import WHOLE_MODEL, Finding, Place, PlaceKind, Severity
from dovetail.targets.child import ChildResult, Limit
from dovetail.targets.htp.rules.compiler import ERROR_BUT_TAKEN, NO_NODE_NAMED, NODE_REFUSED
from dovetail.targets.qnn_htp.log_patterns import HARMLESS, REFUSALS, WARNINGS, meaning, why_not_started

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_REFUSED = re.compile(r"Validation FAILED for \d+ nodes? in OrtNodeUnit \((\w+)\)")
_NODE = re.compile(r"Operator type: (\w+) Node name: (.*) Node index: \d+")
_REASON = re.compile(r"REASON : (.*)")
_NOT_ADDED = re.compile(r"graphAddNode\(\) failed for node `(.*)` of type `(\w+)`.*")
_FINALIZE = re.compile(r'<E> "(.*?)" generated: (.*)')
_SUMMARY = re.compile(r"Unsupported nodes in QNN EP: (.*)")
_SUMMARY_NODE = re.compile(r"\{ name: (.*?), type: (\w+) \}")
_ERROR = re.compile(r"(?:<E>|\[E:[^\]]*\]|::ERROR:) ?(.*)")
_KERNEL = re.compile(r"could not create op: (\S+)")
_KERNEL_INPUT = re.compile(r"Input \d+: .*Tdefs\d+(\w+?)E+\]")
_ARCHITECTURE = re.compile(r"Option: arch = (\d+)")
# What was accepted and fused is listed among the refused, under a name that nobody gave.
_PARTITION = re.compile(r"QNNExecutionProvider_")
# What ONNX Runtime and the provider append to a node's name.
_SUFFIX = re.compile(r"(?:_token_\d+|_\d+)$")
# What is said of every refused node, and tells nothing where there is something else.
_EMPTY_WORDS = re.compile(
    r"validateOpConfig failed \d+|Failed to validate op .* with error|^Failed to (?:add|create) .*node\.?$"
    r"|^Please refer to|^Supported I/O datatype sets|^Failed to construct common node|^Failed to add node with err"
)
_LIMITS = {Limit.TIME: "time_limit_s", Limit.MEMORY: "memory_limit_mb"}
_PLACEHOLDER = re.compile(r"\[4294967295\] ")  # an index of -1: of no tensor in particular


@dataclass(frozen=True, slots=True)
class Refusal:
    """One node that was refused; ``line`` is where the log says so."""

    node: str
    operator: str
    words: str
    line: str


def plain(log: str) -> list[str]:
    """The lines of a log, without colours."""
    return _COLOURS.sub("", log).splitlines()


def log_findings(log: str, places: Mapping[str, Place]) -> tuple[Finding, ...]:
    """Every refusal in a log, once; ``places`` has the nodes of the emitted graph, in the caller's names."""
    found: dict[tuple[str, str], Finding] = {}
    for one in _refusals(plain(log)):
        if _PARTITION.match(one.node):
            continue
        place = place_of(one.node, places)
        said = f"{one.operator} is refused by the compiler: {one.words}"
        if place is None:
            said += f" (no node of the model has that name; the log says: {one.line})"
            place = Place(PlaceKind.NODE, (one.node,) if one.node else ())
        row = meaning(REFUSALS, one.words, NODE_REFUSED)
        found.setdefault((str(place), one.operator), Finding(row.code, place, said, Severity.ERROR, fix=row.fix))
    return tuple(found.values())


def failure(result: ChildResult, artifacts: tuple[Artifact, ...], places: Mapping[str, Place]) -> CompileResult:
    """What a compiler that made nothing has said: a refusal, or that it was not run to its end.

    An error that is neither is not taken for a refusal: the line that could not be read is repeated.
    """
    if not result.finished:
        hint = "" if result.limit is None else f"; raise it with --option {_LIMITS[result.limit]}=N"
        return CompileResult(artifacts, result.error + hint, result.log, finished=False)
    if why := not_started(result.error, result.log):
        return CompileResult(artifacts, why, result.log, finished=False)
    findings = log_findings(result.log, places)
    if findings:
        return CompileResult(artifacts, f"{findings[0].place}: {findings[0].message}", result.log, findings)
    said = f"the compiler's log names no refused node; it ends in: {last_error(result.log) or result.error}"
    unread = Finding(NO_NODE_NAMED, WHOLE_MODEL, said, Severity.ERROR)
    return CompileResult(artifacts, f"{said}; {result.error}", result.log, (unread,), finished=False)


def place_of(node: str, places: Mapping[str, Place]) -> Place | None:
    """Where a node stands that the log names, with or without what was appended; None when there is none."""
    while node and node not in places and _SUFFIX.search(node):
        node = _SUFFIX.sub("", node)
    return places.get(node) if node else None


def not_started(error: str, log: str) -> str:
    """Why the compiler did not look at the graph at all, from its error and its log; empty when it did."""
    said = [error, *(match[1] for line in plain(log) if (match := _ERROR.search(line)))]
    for words in said:
        if why := why_not_started(words):
            return f"{why}; it says: {words.strip()}"
    return ""


def compiled_for(log: str) -> int | None:
    """The HTP architecture that the compiler says it worked for."""
    found = _ARCHITECTURE.search(log)
    return None if found is None else int(found[1])


def last_error(log: str) -> str:
    """The last line that says error, for when nothing else can be made of a log."""
    said = [match[1].strip() for line in plain(log) if not HARMLESS.search(line) and (match := _ERROR.search(line))]
    return said[-1] if said else ""


def warnings(log: str) -> tuple[Finding, ...]:
    """What the compiler called an error in a graph that it took: the words once each."""
    lines = (match[1].strip() for line in plain(log) if not HARMLESS.search(line) and (match := _ERROR.search(line)))
    said = dict.fromkeys(re.sub(r"0x[0-9a-f]+", "0x..", line) for line in lines if line)
    rows = [(words, meaning(WARNINGS, words, ERROR_BUT_TAKEN)) for words in said]
    return tuple(
        Finding(row.code, WHOLE_MODEL, f"the compiler took it and said: {words}", fix=row.fix) for words, row in rows
    )


def _refusals(lines: list[str]) -> Iterator[Refusal]:
    """The refusals of a log: the error lines in front of one belong to it."""
    errors: list[str] = []
    kernel: list[str] = []
    seen: set[str] = set()
    for number, line in enumerate(lines):
        one = None
        if match := _FINALIZE.search(line):
            one = Refusal(match[1], "the node", _kernel(match[2], kernel), line.strip())
        elif match := _NOT_ADDED.search(line):
            one = Refusal(match[1], match[2], _joined([*errors, match[0]]), line.strip())
        elif match := _REFUSED.search(line):
            one = _validated(match[1], lines[number:], errors)
        elif match := _SUMMARY.search(line):
            yield from (r for r in _listed(match[1], line) if r.node not in seen)
        elif (match := _KERNEL.search(line)) or (match := _KERNEL_INPUT.search(line)):
            kernel.append(match[1])
        elif (match := _ERROR.search(line)) and not HARMLESS.search(line):
            errors.append(_with_continuation(match[1], lines[number + 1 :]))
        elif "Validation PASSED" in line:
            errors.clear()
        if one is not None:
            seen.add(one.node)
            yield one
            errors.clear()
            kernel.clear()


def _kernel(words: str, kernel: list[str]) -> str:
    """Which kernel finalizing did not find, and the types that it was asked for."""
    if not kernel:
        return words.strip()
    types = f" for {', '.join(kernel[1:])}" if kernel[1:] else ""
    return f"{words.strip()}: {kernel[0]}{types}"


def _validated(operator: str, lines: list[str], errors: list[str]) -> Refusal:
    """A unit of nodes whose validation failed: the indented lines behind the first name the nodes and the reason."""
    node, reason = "", ""
    for line in lines[1:]:
        if _STAMP.match(line):
            break
        if (match := _NODE.search(line)) and match[1] == operator:
            node = match[2]
        if match := _REASON.search(line):
            reason = match[1].strip()
    words = _joined([*errors, reason]) if reason else f"no reason could be read behind {lines[0].strip()!r}"
    return Refusal(node, operator, words, lines[0].strip())


def _listed(text: str, line: str) -> Iterator[Refusal]:
    """The provider's own list of refused nodes: a cross-check, because none may be missed."""
    nodes = _SUMMARY_NODE.findall(text)
    if not nodes:
        yield Refusal("", "a node", "the list of refused nodes could not be read", line.strip())
    for node, operator in nodes:
        yield Refusal(node, operator, "no reason is given", line.strip())


def _with_continuation(words: str, following: list[str]) -> str:
    """An error line that announces a list, with the list."""
    if not words.rstrip().endswith("datatype set:"):
        return words.strip()
    items = []
    for line in following:
        if _STAMP.match(line):
            break
        items.append(line.strip())
    return " ".join(filter(None, [words.strip(), *items]))


def _joined(words: list[str]) -> str:
    """The compiler's words, once each, without those that are said of every node."""
    clean = [_PLACEHOLDER.sub("", one.strip()) for one in dict.fromkeys(words) if one.strip()]
    telling = [one for one in clean if not _EMPTY_WORDS.search(one)]
    return "; ".join(telling or clean)
