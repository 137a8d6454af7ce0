"""Findings that only a compiler can produce: recorded logs and files give every code, and only that code."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

import dovetail
from dovetail.backend import Artifact
from dovetail.catalog import all_rules, find_rule
from dovetail.finding import Finding, Place, PlaceKind
from dovetail.rules.generic import GENERIC
from dovetail.targets import open_target
from dovetail.targets.child import ChildResult
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qnn_htp import compile as htp
from dovetail.targets.qnn_htp.emitted_nodes import EmittedNode
from dovetail.targets.qnn_htp.log import failure, warnings
from dovetail.targets.qnn_htp.log_patterns import REJECTIONS, WARNINGS
from dovetail.targets.qnn_htp.options import read_options
from dovetail.targets.tensorrt import coverage
from dovetail.targets.tensorrt.layer_info import read_layer_info
from dovetail.targets.tensorrt.table import FP8
from dovetail.targets.tensorrt.unquantized import unquantized
from dovetail.targets.tool_call import ToolCall
from tests.networks.attention_layer import layer
from tests.planning import noise, planned
from tests.rules.cases import write

SOURCE = Path(dovetail.__file__).parent
# Recorded from onnxruntime-qnn 2.7.0 with the graphs of tests/backends/qnn_htp/test_compile_errors.py; only the lines
# about errors and rejected nodes are kept.
LOGS = Path(__file__).parent / "compiler_logs"
LAYER_LISTS = Path(__file__).parents[1] / "backends" / "tensorrt" / "layer_info"
RELU = '<ir_version: 10, opset_import: ["": 21]> g (float[1,4] x) => (float[1,4] y) { [act] y = Relu(x) }'
BUILD = b"v2.51.0.260929181845"

Findings = tuple[Finding, ...]


def recorded(code: str, *without: str) -> str:
    lines = (LOGS / f"{code}.log").read_text().splitlines()
    return "\n".join(line for line in lines if not any(text in line for text in without))


def rejected(log: str) -> Findings:
    names = ("act", "curve", "norm", "store", "product")
    nodes = {name: EmittedNode(Place(PlaceKind.NODE, (f"encoder.{name}",))) for name in names}
    return failure(ChildResult(None, "Fail: nodes are assigned to the CPU", log), (), nodes).findings


class Compiler:
    """The HTP compiler with its child processes replaced: they write a given file and print a given log."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch

    def run(self, context: bytes = BUILD, log: str = "", chip: str = "sm8550", **option: str) -> Findings:
        def child(call: ToolCall, folder: Path) -> ChildResult:
            if call.function.endswith(":write_dlc_in_child"):
                return ChildResult(None, "libQnnIr.so: cannot open shared object file", "")
            (self._folder / "context_qnn.bin").write_bytes(context)
            return ChildResult({}, "", log)

        self._patch.setattr(htp, "call_tool", child)
        self._patch.setattr(htp, "version", lambda package: "2.7.0")
        model = Artifact("model", write(RELU, self._folder))
        options = read_options(chip_named(chip), option)
        return htp.package(options, htp.compile_model(options, (model,), self._folder), self._folder).findings


def attention_in(folder: Path, *left_out: str) -> Findings:
    """The findings for one attention from a layer list that does not fuse it, with one that does for comparison."""
    target, model = open_target("tensorrt"), layer()
    (emitted, *_) = target.backend.emit(model, planned(model, target, FP8, data=noise(model)), folder)
    plain = unquantized(ir.load(emitted.path))
    apart, fused = (read_layer_info(LAYER_LISTS / f"{name}.json") for name in ("apart", "fused"))
    kept = tuple(layer_info for layer_info in apart if layer_info.nodes.isdisjoint(left_out))
    return coverage.findings(coverage.find_blocks(plain, kept, fused))


EMITTED: dict[str, Callable[[Path, pytest.MonkeyPatch], Findings]] = {
    "Q701": lambda folder, patch: Compiler(folder, patch).run(device_qairt="2.48"),
    "Q702": lambda folder, patch: Compiler(folder, patch).run(context=b"no version"),
    "Q703": lambda folder, patch: Compiler(folder, patch).run(dlc="1"),
    "Q704": lambda folder, patch: Compiler(folder, patch).run(log="options.cc:150:Option: arch = 75", chip="soc90/v73"),
    "Q801": lambda *_: rejected(recorded("Q802", "REASON :")),
    "Q802": lambda *_: rejected(recorded("Q802")),
    "Q803": lambda *_: rejected(recorded("Q803")),
    "Q804": lambda *_: rejected(recorded("Q804")),
    "Q805": lambda *_: rejected(recorded("Q805")),
    "Q806": lambda *_: rejected(recorded("Q806")),
    "Q807": lambda *_: rejected(recorded("Q802", "Validation FAILED", "Unsupported nodes")),
    "Q808": lambda *_: warnings(recorded("Q809").replace("scale too large for requant", "an unknown error")),
    "Q809": lambda *_: warnings(recorded("Q809")),
    "Q821": lambda folder, _: attention_in(folder),
    "Q822": lambda folder, _: attention_in(folder, "scores", "mix"),
}


@pytest.mark.parametrize("code", EMITTED)
def test_only_this_code_is_reported(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = EMITTED[code](tmp_path, monkeypatch)
    assert [finding.code for finding in findings] == [code]
    assert str(findings[0].place)
    assert findings[0].message
    assert find_rule(code).check is None


def test_every_explanation_has_a_recording() -> None:
    """Those of targets; the generic ones are found by running the model (tests/verify)."""
    assert sorted(EMITTED) == [rule.code for rule in all_rules() if rule.check is None and rule not in GENERIC]


def test_a_rejected_node_has_the_callers_name() -> None:
    (finding,) = rejected(recorded("Q802"))
    assert finding.place == Place(PlaceKind.NODE, ("encoder.curve",))


def test_every_log_pattern_has_a_code_with_an_explanation() -> None:
    for row in (*REJECTIONS, *WARNINGS):
        assert find_rule(row.code).check is None


def _first_arguments() -> list[tuple[Path, ast.expr]]:
    """The code argument of every ``Finding(...)`` call in the source."""
    arguments = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                arguments.append((path, node.args[0]))
    return arguments


def test_every_code_in_the_source_is_in_the_catalogue() -> None:
    codes, from_table = set(), []
    for path, argument in _first_arguments():
        if isinstance(argument, ast.Constant):
            codes.add(argument.value)
        elif isinstance(argument, ast.Name):
            module = ".".join(("dovetail", *path.relative_to(SOURCE).with_suffix("").parts))
            codes.add(getattr(importlib.import_module(module), argument.id))
        else:
            from_table.append((path.name, ast.unparse(argument)))
    assert from_table == [("log.py", "row.code")] * 2  # rows of REJECTIONS and WARNINGS
    codes |= {row.code for row in (*REJECTIONS, *WARNINGS)}
    assert codes | {"Q801", "Q808"} == {rule.code for rule in all_rules()}
