"""Turn the compiler's log into findings: the node in the caller's model, the compiler's message, and what to do.

The compiler rejects a node at one of three steps, each with its own log format: validating the node, adding it to the
graph, or finalizing the graph. A line that cannot be parsed, or that names an unknown node, is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dovetail.backend import Artifact, CompileResult
from dovetail.finding import WHOLE_MODEL, Finding, Place, PlaceKind, Severity
from dovetail.targets.child import ChildResult, Limit
from dovetail.targets.htp.rules.compiler import (
    DTYPES_NOT_SUPPORTED,
    ERROR_IN_ACCEPTED_GRAPH,
    NO_NODE_NAMED,
    NODE_REJECTED,
)
from dovetail.targets.qnn_htp.emitted_nodes import EmittedNode
from dovetail.targets.qnn_htp.log_patterns import (
    HARMLESS,
    NO_KERNEL_FIX,
    REJECTIONS,
    WARNINGS,
    matching_row,
    why_not_started,
)

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_TIMESTAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_REJECTED = re.compile(r"Validation FAILED for \d+ nodes? in OrtNodeUnit \((\w+)\)")
_NODE = re.compile(r"Operator type: (\w+) Node name: (.*) Node index: \d+")
_REASON = re.compile(r"REASON : (.*)")
_NOT_ADDED = re.compile(r"graphAddNode\(\) failed for node `(.*)` of type `(\w+)`.*")
_FINALIZE = re.compile(r'<E> "(.*?)" generated: (.*)')
_SUMMARY = re.compile(r"Unsupported nodes in QNN EP: (.*)")
_SUMMARY_NODE = re.compile(r"\{ name: (.*?), type: (\w+) \}")
_ERROR = re.compile(r"(?:<E>|\[E:[^\]]*\]|::ERROR:) ?(.*)")
# One of them is in every error line: finding them is faster than matching, and logs have 10,000 lines and more.
_ERROR_MARKS = ("<E>", "[E:", "::ERROR:")
_KERNEL = re.compile(r"could not create op: (\S+)")
_KERNEL_INPUT = re.compile(r"Input \d+: .*Tdefs\d+(\w+?)E+\]")
_ARCHITECTURE = re.compile(r"Option: arch = (\d+)")
# The provider lists fused partitions that it accepted among the rejected nodes, under a generated name.
_PARTITION = re.compile(r"QNNExecutionProvider_")
# Suffixes that ONNX Runtime and the provider append to a node's name.
_SUFFIX = re.compile(r"(?:_token_\d+|_\d+)$")
# Messages that are logged for every rejected node; left out if there is a more specific one.
_UNSPECIFIC = re.compile(
    r"validateOpConfig failed \d+|Failed to validate op .* with error|^Failed to (?:add|create) .*node\.?$"
    r"|^Please refer to|^Supported I/O datatype sets|^Failed to construct common node|^Failed to add node with err"
)
# What is left of an integer operator that has no kernel, once it runs in float.
_LEFT_OVER = "DequantizeLinear"
_LIMITS = {Limit.TIME: "time_limit_s", Limit.MEMORY: "memory_limit_mb"}
_PLACEHOLDER = re.compile(r"\[4294967295\] ")  # an index of -1, for no specific tensor


@dataclass(frozen=True, slots=True)
class Rejection:
    """A node that the compiler rejects, the reason that it logs, and the log line."""

    node: str
    operator: str
    reason: str
    line: str


def plain(log: str) -> list[str]:
    """Return the lines of a log without color codes."""
    return _COLORS.sub("", log).splitlines()


def log_findings(log: str, nodes: Mapping[str, EmittedNode]) -> tuple[Finding, ...]:
    """Return a finding for every rejected node in a log; ``nodes`` are those of the emitted graph by name."""
    findings: dict[tuple[str, str], Finding] = {}
    for rejection in _rejections(plain(log)):
        if _PARTITION.match(rejection.node):
            continue
        node = node_named(rejection.node, nodes)
        left_over = node is not None and node.tried and rejection.operator == _LEFT_OVER
        finding = _no_kernel(rejection, node) if node is not None and left_over else _rejected(rejection, node)
        operator = node.operator if node is not None and left_over else rejection.operator
        findings.setdefault((str(finding.place), operator), finding)
    return tuple(findings.values())


def _rejected(rejection: Rejection, node: EmittedNode | None) -> Finding:
    message = f"{rejection.operator} is rejected by the compiler: {rejection.reason}"
    if node is None:
        message += f" (the model has no node of that name; the log line is: {rejection.line})"
    place = Place(PlaceKind.NODE, (rejection.node,) if rejection.node else ()) if node is None else node.place
    row = matching_row(REJECTIONS, rejection.reason, NODE_REJECTED)
    return Finding(row.code, place, message, Severity.ERROR, fix=row.fix)


def _no_kernel(rejection: Rejection, node: EmittedNode) -> Finding:
    """The finding about the operator whose constant is left over in a DequantizeLinear of its own."""
    message = (
        f"HTP has no kernel for {node.operator} with {node.tried}; the compiler then runs it in float, and rejects the "
        f"{_LEFT_OVER} of its constant: {rejection.reason}"
    )
    return Finding(DTYPES_NOT_SUPPORTED, node.place, message, Severity.ERROR, fix=NO_KERNEL_FIX)


def failure(result: ChildResult, artifacts: tuple[Artifact, ...], nodes: Mapping[str, EmittedNode]) -> CompileResult:
    """Return the result of a compilation that failed: rejected nodes, or why the compiler did not finish.

    An error that is neither does not count as a rejection: the log line that could not be parsed is quoted.
    """
    if not result.finished:
        hint = "" if result.limit is None else f"; raise it with --option {_LIMITS[result.limit]}=N"
        return CompileResult(artifacts, result.error + hint, result.log, finished=False)
    if why := not_started(result.error, result.log):
        return CompileResult(artifacts, why, result.log, finished=False)
    findings = log_findings(result.log, nodes)
    if findings:
        return CompileResult(artifacts, f"{findings[0].place}: {findings[0].message}", result.log, findings)
    message = f"the compiler's log names no rejected node; its last error is: {last_error(result.log) or result.error}"
    unknown = Finding(NO_NODE_NAMED, WHOLE_MODEL, message, Severity.ERROR)
    return CompileResult(artifacts, f"{message}; {result.error}", result.log, (unknown,), finished=False)


def node_named(name: str, nodes: Mapping[str, EmittedNode]) -> EmittedNode | None:
    """Return the node that the log names, with or without appended suffixes; None if it is unknown."""
    while name and name not in nodes and _SUFFIX.search(name):
        name = _SUFFIX.sub("", name)
    return nodes.get(name) if name else None


def not_started(error: str, log: str) -> str:
    """Return why the compiler did not start, from its error and its log; empty if it did."""
    messages = [error, *(match[1] for line in plain(log) if (match := _ERROR.search(line)))]
    for message in messages:
        if why := why_not_started(message):
            return f"{why}; its error message is: {message.strip()}"
    return ""


def compiled_for(log: str) -> int | None:
    """Return the HTP architecture that the log says the graph was compiled for."""
    match = _ARCHITECTURE.search(log)
    return None if match is None else int(match[1])


def last_error(log: str) -> str:
    """Return the last error in a log, for when no rejected node is found in it."""
    errors = _errors(log)
    return errors[-1] if errors else ""


def warnings(log: str) -> tuple[Finding, ...]:
    """Return a finding for each different error that the compiler logs for a graph that it accepts."""
    errors = dict.fromkeys(re.sub(r"0x[0-9a-f]+", "0x..", error) for error in _errors(log) if error)
    rows = [(error, matching_row(WARNINGS, error, ERROR_IN_ACCEPTED_GRAPH)) for error in errors]
    return tuple(
        Finding(row.code, WHOLE_MODEL, f"the compiler accepted the graph, but logged the error: {error}", fix=row.fix)
        for error, row in rows
    )


def _errors(log: str) -> list[str]:
    """The messages of the error lines in a log, without those that are logged for every graph."""
    lines = (line for line in plain(log) if any(mark in line for mark in _ERROR_MARKS) and not HARMLESS.search(line))
    return [match[1].strip() for line in lines if (match := _ERROR.search(line))]


def _rejections(lines: list[str]) -> Iterator[Rejection]:
    """The rejected nodes in a log; the error lines before a rejection belong to it."""
    errors: list[str] = []
    kernel: list[str] = []
    seen: set[str] = set()
    for number, line in enumerate(lines):
        rejection = None
        if match := _FINALIZE.search(line):
            rejection = Rejection(match[1], "the node", _with_kernel(match[2], kernel), line.strip())
        elif match := _NOT_ADDED.search(line):
            rejection = Rejection(match[1], match[2], _joined([*errors, match[0]]), line.strip())
        elif match := _REJECTED.search(line):
            rejection = _failed_validation(match[1], lines[number:], errors)
        elif match := _SUMMARY.search(line):
            yield from (r for r in _listed(match[1], line) if r.node not in seen)
        elif (match := _KERNEL.search(line)) or (match := _KERNEL_INPUT.search(line)):
            kernel.append(match[1])
        elif (match := _ERROR.search(line)) and not HARMLESS.search(line):
            errors.append(_with_continuation(match[1], lines[number + 1 :]))
        elif "Validation PASSED" in line:
            errors.clear()
        if rejection is not None:
            seen.add(rejection.node)
            yield rejection
            errors.clear()
            kernel.clear()


def _with_kernel(error: str, kernel: list[str]) -> str:
    """An error of finalizing the graph, with the kernel that does not exist and its input types."""
    if not kernel:
        return error.strip()
    types = f" for {', '.join(kernel[1:])}" if kernel[1:] else ""
    return f"{error.strip()}: {kernel[0]}{types}"


def _failed_validation(operator: str, lines: list[str], errors: list[str]) -> Rejection:
    """A group of nodes that failed validation: the indented lines after the first name the nodes and the reason."""
    node, reason = "", ""
    for line in lines[1:]:
        if _TIMESTAMP.match(line):
            break
        if (match := _NODE.search(line)) and match[1] == operator:
            node = match[2]
        if match := _REASON.search(line):
            reason = match[1].strip()
    text = _joined([*errors, reason]) if reason else f"the log has no reason after the line {lines[0].strip()!r}"
    return Rejection(node, operator, text, lines[0].strip())


def _listed(text: str, line: str) -> Iterator[Rejection]:
    """The provider's own list of rejected nodes, as a cross-check that none is missed."""
    nodes = _SUMMARY_NODE.findall(text)
    if not nodes:
        yield Rejection("", "a node", "the list of rejected nodes could not be read", line.strip())
    for node, operator in nodes:
        yield Rejection(node, operator, "the log gives no reason", line.strip())


def _with_continuation(error: str, following: list[str]) -> str:
    """An error line, with the lines of the list that follows if it announces one."""
    if not error.rstrip().endswith("datatype set:"):
        return error.strip()
    items = []
    for line in following:
        if _TIMESTAMP.match(line):
            break
        items.append(line.strip())
    return " ".join(filter(None, [error.strip(), *items]))


def _joined(messages: list[str]) -> str:
    """The compiler's messages, each once, without the unspecific ones if there are others."""
    clean = [_PLACEHOLDER.sub("", message.strip()) for message in dict.fromkeys(messages) if message.strip()]
    specific = [message for message in clean if not _UNSPECIFIC.search(message)]
    return "; ".join(specific or clean)
