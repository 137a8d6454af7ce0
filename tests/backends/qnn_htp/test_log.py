"""A log that cannot be parsed never gives an empty list of findings: real logs with lines removed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dovetail.backend import CompileResult, Probe
from dovetail.finding import Finding, Place, PlaceKind, Status, Thresholds
from dovetail.targets.child import ChildResult
from dovetail.targets.qnn_htp.emitted_nodes import EmittedNode
from dovetail.targets.qnn_htp.log import failure, log_findings, node_named, warnings
from dovetail.verify import verdicts
from tests.backends.qnn_htp.real_compiler import ERF, compile_text

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

NODES = {name: EmittedNode(Place(PlaceKind.NODE, (f"encoder.{name}",))) for name in ("act", "curve")}
ERROR = "Fail: nodes are assigned to the CPU"


@pytest.fixture(scope="module")
def rejected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The compiler's log of a graph with an Erf."""
    return compile_text(ERF, tmp_path_factory.mktemp("erf")).log


def without(log: str, pattern: str) -> str:
    lines = [line for line in log.splitlines() if not re.search(pattern, line)]
    assert len(lines) < len(log.splitlines())
    return "\n".join(lines)


def read(log: str) -> CompileResult:
    return failure(ChildResult(None, ERROR, log), (), NODES)


def verdict(compiled: CompileResult) -> Status:
    return verdicts.compiled(compiled, Probe(True, {}), Thresholds()).status


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


def test_the_node_has_the_callers_name(rejected: str) -> None:
    result = read(rejected)
    assert str(only(result.findings).place) == "encoder.curve"
    assert verdict(result) is Status.FAIL


def test_accepted_nodes_around_a_rejected_node_are_not_reported(tmp_path: Path) -> None:
    """If a node in the middle is rejected, the provider lists its own fused partitions among the rejected nodes."""
    text = "g (float[1,8,16] x) => (float[1,8,16] y) { [first] a = Relu(x)  [curve] b = Erf(a)  [last] y = Neg(b) }"
    result = compile_text(text, tmp_path)
    assert "QNNExecutionProvider_" in result.log
    assert str(only(result.findings).place) == "curve"


def test_a_rejection_without_a_reason_is_still_a_rejection(rejected: str) -> None:
    result = read(without(rejected, "REASON :"))
    assert str(only(result.findings).place) == "encoder.curve"
    assert "the log has no reason after the line " in only(result.findings).message
    assert "Validation FAILED for 1 nodes in OrtNodeUnit (Erf)" in only(result.findings).message
    assert verdict(result) is Status.FAIL


def test_the_providers_own_list_is_a_cross_check(rejected: str) -> None:
    result = read(without(rejected, "Validation FAILED"))
    assert str(only(result.findings).place) == "encoder.curve"
    assert "the log gives no reason" in only(result.findings).message
    assert verdict(result) is Status.FAIL


def test_a_list_that_cannot_be_parsed_is_quoted(rejected: str) -> None:
    log = without(rejected, "Validation FAILED").replace("{ name: curve, type: Erf }", "<curve|Erf>")
    assert "the log line is: " in only(read(log).findings).message
    assert "Unsupported nodes in QNN EP: <curve|Erf>" in only(read(log).findings).message


def test_an_error_without_a_rejected_node_is_not_checked_and_quotes_the_last_error(rejected: str) -> None:
    result = read(without(rejected, "Validation FAILED|Unsupported nodes in QNN EP"))
    message = "the compiler's log names no rejected node; its last error is: This session contains graph nodes that are"
    assert only(result.findings).message.startswith(message)
    assert result.error.startswith(message)
    assert verdict(result) is Status.NOT_CHECKED


def test_no_log_at_all_is_not_checked_with_the_error() -> None:
    result = read("")
    assert only(result.findings).message.endswith(f"its last error is: {ERROR}")
    assert verdict(result) is Status.NOT_CHECKED


def test_a_node_that_the_model_does_not_have_is_reported_with_the_log_line(rejected: str) -> None:
    finding = only(log_findings(rejected, {"act": NODES["act"]}))
    assert str(finding.place) == "curve"
    assert "the model has no node of that name; the log line is: " in finding.message


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("act", "encoder.act"),
        ("act_token_12", "encoder.act"),
        ("act_2", "encoder.act"),
        ("act_token_3_2", "encoder.act"),
        ("node_2", "head"),
        ("node", None),
        ("", None),
    ],
)
def test_only_known_suffixes_are_removed_from_a_name(name: str, original: str | None) -> None:
    node = node_named(name, {**NODES, "node_2": EmittedNode(Place(PlaceKind.NODE, ("head",)))})
    assert (None if node is None else str(node.place)) == original


def test_a_repeated_error_is_reported_once() -> None:
    line = "2026 [V:onnxruntime:Default, x.cc:1 QnnLogging] linearclip.h:248::ERROR:something new; OpID: {}"
    assert len(warnings("\n".join(line.format(hex(number)) for number in range(3)))) == 1
    assert warnings("QnnLogging]  <E> unexpected GraphHtpSettings option 66") == ()
