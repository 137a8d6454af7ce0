"""Every HTP case of every rule on the real compiler and emulator: bad cases have a problem, good cases do not.

The head of a case has the expected outcome: ``rejected`` (by the compiler), ``differs`` (compiled, but the emulator's
outputs differ from the simulation's), ``changed`` (correct outputs, but a quantized tensor was read back with a
different quantization), ``slower`` (as planned, but the vendor's estimate is higher than that of the rule's good case),
``inaccurate`` (as planned, but farther from the graph without its Q/DQ pairs than the rule's good case) or
``as planned``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dovetail import rule_docs as docs
from dovetail.backend import Artifact
from dovetail.catalog import all_rules, families_with
from dovetail.numerics.metrics import sqnr_db
from dovetail.targets import open_target
from dovetail.targets.qnn_htp.compile import compile_model
from dovetail.targets.qnn_htp.options import HtpOptions
from tests.backends.qnn_htp.case_compilation import EQUAL_DB, compiled
from tests.backends.qnn_htp.case_session import simulate
from tests.rules.cases import cases_of, head_of, write

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

FAMILY = "qnn-htp"
# Rules about another tool: the provider compiles their bad case as planned.
NOT_REPRODUCED = {"Q403"}
# Block-quantized weights run with dequantized activations unless an option of the provider is set: only outputs count.
IN_FLOAT_BY_DESIGN = {"Q203"}
SLOWER, INACCURATE = "slower", "inaccurate"
# How much longer it takes at least; two estimates of one graph with another order of nodes differ by 2 %.
LONGER = 1.1
# How much farther from float it is at least.
FARTHER_DB = 15.0


def estimated_us(text: str, folder: Path) -> int:
    """The latency that the compiler estimates for a case."""
    folder.mkdir()
    model = write(text, folder)
    options = open_target(head_of(text)["target"], {}).facts
    assert isinstance(options, HtpOptions)
    estimate = compile_model(options, (Artifact("model", model),), folder).estimate
    assert estimate is not None
    assert estimate.ops_without_cost == 0
    return estimate.mid_us


def distance_db(text: str, folder: Path) -> float:
    """The SQNR of the emulator's outputs against those of the graph without its Q/DQ pairs."""
    folder.mkdir(exist_ok=True)
    model = write(text, folder)
    compilation = compiled(model, head_of(text)["target"].partition(":")[2], folder)
    assert compilation.outcome == "as planned", compilation
    onnx.save(without_pairs(onnx.load(model)), folder / "float.onnx")
    with np.load(folder / "sample.npz") as sample, np.load(folder / "outputs.npz") as emulated:
        floats = simulate(str(folder / "float.onnx"), dict(sample))
        return min(sqnr_db(floats[name], emulated[name]) for name in floats)


def without_pairs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without its QuantizeLinear nodes and those that dequantize their outputs."""
    sources = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in sources:
            node.op_type, node.input[:] = "Identity", [sources[node.input[0]]]
    kept = [node for node in model.graph.node if node.op_type != "QuantizeLinear"]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def cases() -> list[Any]:
    return [pytest.param(code, kind, text, id=name) for name, code, kind, text in cases_of(FAMILY)]


@pytest.mark.parametrize(("code", "kind", "text"), cases())
def test_the_compiler_agrees_with_the_rule(code: str, kind: str, text: str, tmp_path: Path) -> None:
    head = head_of(text)
    compilation = compiled(write(text, tmp_path), head["target"].partition(":")[2], tmp_path)
    if head["compiled"] == SLOWER:
        (good,) = docs.case_texts(code, "good").values()
        assert compilation.outcome == "as planned", compilation
        assert estimated_us(text, tmp_path / "bad") > LONGER * estimated_us(good, tmp_path / "good")
        return
    if head["compiled"] == INACCURATE:
        (good,) = docs.case_texts(code, "good").values()
        assert distance_db(text, tmp_path / "bad") < distance_db(good, tmp_path / "good") - FARTHER_DB
        return
    assert compilation.outcome == head["compiled"], compilation
    if kind == "good":
        assert min(compilation.agreement_db) >= EQUAL_DB
        assert compilation.matched > 0 or "QuantizeLinear" not in text


@pytest.mark.parametrize(
    "rule", [r for r in all_rules() if r.check and FAMILY in families_with(r)], ids=lambda rule: rule.code
)
def test_every_rule_of_the_target_has_cases_that_verify_it(rule: Any) -> None:
    bad, good = (
        {head_of(text)["compiled"] for text in docs.case_texts(rule.code, k).values()} for k in ("bad", "good")
    )
    assert good == ({"changed"} if rule.code in IN_FLOAT_BY_DESIGN else {"as planned"})
    if rule.code in NOT_REPRODUCED:
        assert bad == {"as planned"}
        assert "not reproduced" in rule.sections["Seen on"]
    else:
        assert bad
        assert bad <= {"rejected", "changed", "differs", SLOWER, INACCURATE}
