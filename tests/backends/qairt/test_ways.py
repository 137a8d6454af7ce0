"""What `fit` answers about the ways: it agrees with `check` of the files that it writes, and claims no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.encodings.read import read_encodings
from dovetail.errors import InputError
from dovetail.report.result import Result
from dovetail.targets.qairt.sdk import Confidence, Subject

CASES = Path(dovetail.__file__).parent / "rules" / "cases"
ATTENTION = """<ir_version: 10, opset_import: ["": 21]>
att (float[1,4,8] x, float[1,8,4] z) => (float[1,4,4] y)
{ [sq] q = Sigmoid(x) [sk] k = Sigmoid(z) [mm] m = MatMul(q, k) [out] y = Sigmoid(m) }"""


@pytest.fixture(autouse=True)
def no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QAIRT_SDK_ROOT", "QNN_SDK_ROOT"):
        monkeypatch.delenv(name, raising=False)


def fit(folder: Path, model: onnx.ModelProto | None = None, **options: Any) -> tuple[Result, dict[str, Any]]:
    path = folder / "model.onnx"
    onnx.save(model or onnx.parser.parse_model(ATTENTION), path)
    options = {"target": "qairt:2.33/v75", "precision": "w8a8", **options}
    result = dovetail.fit(path, calibration="random:2", output=folder / "run", **options)
    document = json.loads((folder / "run" / "qairt" / "ways.json").read_bytes())
    return result, {way["name"]: way for way in document["ways"]}


def test_a_float16_by_uint8_matmul_is_a_no_as_in_check(tmp_path: Path) -> None:
    result, ways = fit(tmp_path, keep=["sq=fp16", "mm=w8a8"])  # otherwise the MatMul and both operands are in float
    assert (ways["fallback"]["can"], ways["explicit"]["can"], next(iter(ways))) == ("no", "no", "split")
    assert "mm" in ways["fallback"]["why"]
    rows = {(row["tensor"], row["planned"], row["predicted"]) for row in ways["fallback"]["differs"]}
    assert rows == {("q at mm:0", "uint8", "float16"), ("operator mm", "integer", "float")}
    assert "Q726" in {finding.code for finding in result.findings}
    findings = dovetail.check(
        tmp_path / "model.onnx", target="qairt:2.33/v75",
        encodings=tmp_path / "run" / "qairt" / "fallback" / "encodings.json",
        option={"input_list": "0", "float_fallback": "1", "float_bitwidth": "16"},
    )  # fmt: skip
    assert "Q717" in {finding.code for finding in findings}


@pytest.mark.parametrize("strategy", ["fallback", "explicit", "split"])
def test_the_way_that_fit_takes_has_findings(strategy: str, tmp_path: Path) -> None:
    result, _ = fit(tmp_path, keep=["sq=fp16", "mm=w8a8"], option={"strategy": strategy})
    found = {finding.code: finding for finding in result.findings if finding.code in ("Q714", "Q717")}
    assert set(found) == {"fallback": {"Q717"}, "explicit": {"Q714", "Q717"}, "split": set()}[strategy]
    if "Q717" in found:
        assert str(found["Q717"].place) == "mm"


def test_float_operators_are_closed_so_that_the_entries_say_everything(tmp_path: Path) -> None:
    result, ways = fit(tmp_path, keep=["sq=fp16"])
    dtypes = {row.tensor: str(row.dtype) for row in result.plan if row.edge is None}
    assert dtypes == {"x": "uint8", "z": "uint8", "q": "float16", "k": "float16", "m": "uint8", "y": "uint8"}
    assert (next(iter(ways)), ways["fallback"]["can"], ways["fallback"]["differs"]) == ("fallback", "yes", [])
    entries = read_encodings(tmp_path / "run" / "qairt" / "fallback" / "encodings.json").entries
    assert set(entries) == {"x", "z", "m", "y"}
    facts = "\n".join(ways["fallback"]["facts"])  # what the prediction relies on is said
    assert f"{Subject.FLOAT_RESULT}: yes" in facts
    assert Confidence.INFERRED in facts
    assert not {"Q717", "Q726"} & {finding.code for finding in result.findings}


def test_an_operand_that_must_be_symmetric_has_a_symmetric_entry(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(ATTENTION.replace("Sigmoid(z)", "Relu(z)"))
    result, ways = fit(tmp_path, model, precision="w8a16")
    rows = {str(row.edge or row.tensor): row for row in result.plan}
    assert (str(rows["k"].dtype), rows["k"].zero_point) == ("uint16", 32768)
    assert (str(rows["mm:1"].dtype), rows["mm:1"].scale) == ("int16", rows["k"].scale)
    entry = read_encodings(tmp_path / "run" / "qairt" / "fallback" / "encodings.json").entries["k"]
    assert (entry.dtype_text, entry.symmetric, float(entry.scale)) == ("int16", True, pytest.approx(rows["k"].scale))
    for name in ("fallback", "explicit"):
        assert (ways[name]["differs"], ways[name]["notes"]) == ([], [])


def test_a_narrower_operand_is_counted(tmp_path: Path) -> None:
    """Before v73, HTP reads the second operand in 8 bit."""
    result, ways = fit(tmp_path, precision="w8a16", target="qairt:2.33/v69")
    assert ways["fallback"]["can"] == "yes"
    for name in ("fallback", "explicit"):
        (row,) = ways[name]["differs"]
        assert (row["tensor"], row["planned"], row["predicted"]) == ("k at mm:1", "uint8", "uint16")
    assert ways["split"]["notes"] == ["mm:1 reads 'k' as uint8"]
    (decision,) = [each for each in result.decisions if each.knob == "conversion"]
    figures = {alternative.label: alternative.figures for alternative in decision.alternatives}
    assert figures["fallback"]["not_as_planned"] == 1
    assert not {"split", "qdq"} & {name for name, values in figures.items() if "not_as_planned" in values}
    assert [str(finding.place) for finding in result.findings if finding.code == "Q726"] == ["mm"]


@pytest.mark.parametrize("producer", ["Sigmoid", "Neg"])  # the scale of a Sigmoid is fixed
def test_the_entries_of_the_callers_file_are_kept_and_what_they_cannot_say_is_reported(
    producer: str, tmp_path: Path
) -> None:
    case = (CASES / "Q726.bad.onnxtxt").read_text()
    onnx.save(onnx.parser.parse_model(case.replace("Sigmoid(z)", f"{producer}(z)")), tmp_path / "model.onnx")
    (tmp_path / "given.json").write_text(case.splitlines()[1].removeprefix("# encodings: "))
    given: dict[str, Any] = {"target": "qairt:2.33/v75", "encodings": tmp_path / "given.json"}
    options = {"input_list": "0", "float_fallback": "1", "float_bitwidth": "16"}
    checked = dovetail.check(tmp_path / "model.onnx", option=options, **given)
    result = dovetail.fit(tmp_path / "model.onnx", calibration="random:2", output=tmp_path / "run", **given)
    planned = {row.tensor: (str(row.dtype), row.scale, row.zero_point) for row in result.plan if row.edge is None}
    assert planned["k"] == ("uint16", 1 / 65536, 0)
    assert planned["y"][0] == "uint16"
    for findings in (checked, result.findings):
        (finding,) = [finding for finding in findings if finding.code == "Q726"]
        assert "must read 'k' as int16" in finding.message


def test_every_input_and_output_of_an_integer_part_has_an_entry(tmp_path: Path) -> None:
    fit(tmp_path, keep=["sq=fp16", "mm=w8a8"])
    folder = tmp_path / "run" / "qairt" / "split"
    parts = [p for p in json.loads((folder / "manifest.json").read_bytes())["parts"] if p["computes_in"] == "integer"]
    assert any("q" in part["inputs"] for part in parts)
    for part in parts:
        entries = read_encodings(folder / part["encodings"]).entries
        assert {*part["inputs"], *part["outputs"]} <= set(entries)


def test_blocks_are_a_no_where_the_sdk_does_not_read_them(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    one (float[1, 64, 2, 2] x) => (float[1, 32, 2, 2] y) { [conv] y = Conv(x, w) }"""
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((32, 64, 1, 1), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    result, ways = fit(tmp_path, model, precision="w4a16-lpbq", block_size=32, option={"strategy": "fallback"})
    for name in ("fallback", "explicit", "split"):
        assert ways[name]["can"] == "no", name
        assert "reads weights in blocks and LPBQ: no" in ways[name]["why"]
        assert any("reads encodings 1.0.0" in row for row in ways[name]["facts"])
    assert {"Q715", "Q716"} <= {finding.code for finding in result.findings}


def test_a_graph_that_is_kept_is_not_cut(tmp_path: Path) -> None:
    _, ways = fit(tmp_path, keep=["out=fp16"], option={"keep_graph": "1"})
    assert "split" not in ways
    assert "folded" not in ways["explicit"]["why"]
    with pytest.raises(InputError, match="strategy=split cuts the graph"):
        fit(tmp_path, option={"keep_graph": "1", "strategy": "split"})


def test_the_flags_are_those_of_the_plan_and_of_its_inputs(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    scaled (float[1, 4] x, float s) => (float[1, 4] y) { m = Mul(x, s) [out] y = Sigmoid(m) }"""
    fit(tmp_path, onnx.parser.parse_model(text), precision="w8a16", keep=["out=fp16"])
    script = (tmp_path / "run" / "qairt" / "explicit" / "convert.sh").read_text()
    assert "--act_bitwidth 16" in script
    assert script.count("--input_dim") == 1
    assert "--input_dim x 1,4" in script


def test_only_a_no_is_a_failure(tmp_path: Path) -> None:
    result, ways = fit(tmp_path, keep=["out=fp16"])
    (decision,) = [each for each in result.decisions if each.knob == "conversion"]
    assert ways["qdq"]["can"] == "unknown"
    assert not any(alternative.failure for alternative in decision.alternatives)
