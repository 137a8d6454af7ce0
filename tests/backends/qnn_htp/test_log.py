"""A log that cannot be read is never an empty list: real logs, with lines taken out of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dovetail.backend import CompileResult, Probe
from dovetail.finding import Finding, Place, PlaceKind, Status, Thresholds
from dovetail.targets.child import ChildResult
from dovetail.targets.qnn_htp.log import failure, log_findings, place_of, warnings
from dovetail.verify import verdicts
from tests.backends.qnn_htp.real_compiler import ERF, compile_text

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

PLACES = {name: Place(PlaceKind.NODE, (f"encoder.{name}",)) for name in ("act", "curve")}
ERROR = "Fail: nodes are assigned to the CPU"


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the compiler printed about a graph with an Erf."""
    return compile_text(ERF, tmp_path_factory.mktemp("erf")).log


def without(log: str, pattern: str) -> str:
    lines = [line for line in log.splitlines() if not re.search(pattern, line)]
    assert len(lines) < len(log.splitlines())
    return "\n".join(lines)


def read(log: str) -> CompileResult:
    return failure(ChildResult(None, ERROR, log), (), PLACES)


def verdict(compiled: CompileResult) -> Status:
    return verdicts.compiled(compiled, Probe(True, {}), Thresholds()).status


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


def test_the_node_is_named_as_the_caller_named_it(refused: str) -> None:
    result = read(refused)
    assert str(only(result.findings).place) == "encoder.curve"
    assert verdict(result) is Status.FAIL


def test_what_was_taken_around_a_refused_node_is_not_called_refused(tmp_path: Path) -> None:
    """The provider lists its own fused parts among the refused, once a node in the middle is."""
    text = "g (float[1,8,16] x) => (float[1,8,16] y) { [first] a = Relu(x)  [curve] b = Erf(a)  [last] y = Neg(b) }"
    result = compile_text(text, tmp_path)
    assert "QNNExecutionProvider_" in result.log
    assert str(only(result.findings).place) == "curve"


def test_a_refusal_without_a_reason_is_still_a_refusal(refused: str) -> None:
    result = read(without(refused, "REASON :"))
    assert str(only(result.findings).place) == "encoder.curve"
    assert "no reason could be read behind " in only(result.findings).message
    assert "Validation FAILED for 1 nodes in OrtNodeUnit (Erf)" in only(result.findings).message
    assert verdict(result) is Status.FAIL


def test_the_providers_own_list_is_a_cross_check(refused: str) -> None:
    result = read(without(refused, "Validation FAILED"))
    assert str(only(result.findings).place) == "encoder.curve"
    assert "no reason is given" in only(result.findings).message
    assert verdict(result) is Status.FAIL


def test_a_list_that_cannot_be_read_is_repeated(refused: str) -> None:
    log = without(refused, "Validation FAILED").replace("{ name: curve, type: Erf }", "<curve|Erf>")
    assert "the log says: " in only(read(log).findings).message
    assert "Unsupported nodes in QNN EP: <curve|Erf>" in only(read(log).findings).message


def test_an_error_without_any_refusal_is_not_checked_with_the_offending_line(refused: str) -> None:
    result = read(without(refused, "Validation FAILED|Unsupported nodes in QNN EP"))
    said = "the compiler's log names no refused node; it ends in: This session contains graph nodes that are assigned"
    assert only(result.findings).message.startswith(said)
    assert result.error.startswith(said)
    assert verdict(result) is Status.NOT_CHECKED


def test_no_log_at_all_is_not_checked_with_the_error() -> None:
    result = read("")
    assert only(result.findings).message.endswith(f"it ends in: {ERROR}")
    assert verdict(result) is Status.NOT_CHECKED


def test_a_node_that_the_model_does_not_have_is_told_with_the_line(refused: str) -> None:
    finding = only(log_findings(refused, {"act": PLACES["act"]}))
    assert str(finding.place) == "curve"
    assert "no node of the model has that name; the log says: " in finding.message


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
def test_what_is_appended_to_a_name_is_taken_off_but_no_more(name: str, original: str | None) -> None:
    place = place_of(name, {**PLACES, "node_2": Place(PlaceKind.NODE, ("head",))})
    assert (None if place is None else str(place)) == original


def test_error_words_are_repeated_once_however_often_they_are_said() -> None:
    line = "2026 [V:onnxruntime:Default, x.cc:1 QnnLogging] linearclip.h:248::ERROR:something new; OpID: {}"
    assert len(warnings("\n".join(line.format(hex(number)) for number in range(3)))) == 1
    assert warnings("QnnLogging]  <E> unexpected GraphHtpSettings option 66") == ()
