"""``result.json`` is read completely, and any other document is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.errors import InputError
from dovetail.finding import PASSES_WHEN, Thresholds, passes_when


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("result")
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,4] x) => (float[1,4] y) { a = Relu(x)  y = Neg(a) }'
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    data = {"x": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)}
    dovetail.fit(folder / "model.onnx", target="ort-cpu", calibration=data, output=folder / "run")
    return folder / "run" / "result.json"


def test_reading_and_writing_gives_the_same_bytes(written: Path) -> None:
    result = dovetail.load_result(written)
    assert result.to_json() == written.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, "not a result of schema version 4"),
        ({"target": 3}, "target"),
        ({"verdicts": {"numerics": {"status": "perhaps", "reason": ""}}}, "perhaps"),
    ],
)
def test_another_document_is_refused(written: Path, change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**json.loads(written.read_text()), **change}))
    with pytest.raises(InputError, match=message):
        dovetail.load_result(path)


def test_a_plan_in_float_is_read_back_as_float(written: Path, tmp_path: Path) -> None:
    data = {"x": np.ones((2, 4), np.float32)}
    model = written.parents[1] / "model.onnx"
    result = dovetail.fit(model, target="ort-cpu", precision="fp32", calibration=data, output=tmp_path / "run")
    assert not result.failed
    assert str(result.verdicts["fidelity"].status) == "pass"
    assert result.verdicts["fidelity"].numbers["matched"] > 0, "a pass is a pass only if something was read back"


def assert_same_verdicts(old: dict[str, Any], result: dovetail.Result) -> None:
    for name, verdict in old["verdicts"].items():
        read = result.verdicts[name]
        before = (verdict["status"], verdict["reason"], verdict["evidence"], [verdict["threshold"]])
        assert (str(read.status), read.reason, read.evidence, list(read.passes_when.values())) == before


VERSION_1 = Path(__file__).parent / "result_v1.json"  # of a real run on qnn-htp, with fewer rows


def test_a_result_of_version_1_is_read_without_losing_information(tmp_path: Path) -> None:
    old, result = json.loads(VERSION_1.read_text()), dovetail.load_result(VERSION_1)
    assert (old["schema_version"], result.schema_version) == (1, 4)
    (before,), (finding,) = old["findings"], result.findings
    assert (before["code"], finding.code) == ("qnn-htp", "Q701")
    assert (str(finding.place), finding.message, finding.fix) == (before["where"], before["message"], before["fix"])
    rows = {row.emitted: row for row in result.read_back}
    assert [(row["tensor"], row["outcome"], row["detail"]) for row in old["read_back"]] == [
        (row.emitted, row.outcome, row.detail) for row in result.read_back
    ]
    assert (rows["patch_embed.weight__q"].tensor, str(rows["patch_embed.weight__q"].edge)) == (
        "patch_embed.weight",
        "patch_embed/Conv:1",
    )
    searched = old["metrics"]["operands"]["operands"]
    assert [(decision.knob, decision.taken) for decision in result.decisions] == [
        ("operands", row["chosen"]) for row in searched
    ]
    assert [decision.alternatives[1].figures["sqnr_db"] for decision in result.decisions] == [
        row["narrow_sqnr_db"] for row in searched
    ]
    assert [row.detail for row in result.plan] == [row["reason"] for row in old["plan"]]
    (tmp_path / "again.json").write_bytes(result.to_json())
    assert dovetail.load_result(tmp_path / "again.json") == result
    now = json.loads(result.to_json())
    assert [(artifact.path, artifact.sha256) for artifact in result.artifacts] == [
        (artifact["path"], artifact["sha256"]) for artifact in old["artifacts"]
    ]
    assert {key: now["thresholds"][key] for key in old["thresholds"]} == old["thresholds"]
    changed = {"schema_version", "verdicts", "thresholds", "findings", "read_back", "metrics", "plan", "artifacts"}
    assert_same_verdicts(old, result)
    assert {key: now[key] for key in old if key not in changed} == {key: old[key] for key in old if key not in changed}


def test_an_incomplete_result_of_version_1_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    old = json.loads(VERSION_1.read_text())
    path.write_text(json.dumps({key: value for key, value in old.items() if key != "read_back"}))
    with pytest.raises(InputError, match=r"not a complete result of schema version 1 .*read_back"):
        dovetail.load_result(path)


def test_read_back_rows_have_the_callers_names_and_edges_of_the_plan(written: Path) -> None:
    raw = json.loads(written.read_text())
    original, emitted = (_names(path) for path in (written.parents[1] / "model.onnx", written.parent / "model.onnx"))
    names = {row["edge"] or row["tensor"]: row["original_name"] for row in raw["plan"]}
    assert raw["read_back"]
    for row in raw["read_back"]:
        assert row["emitted"] in emitted
        assert row["tensor"] in original
        assert row["edge"] is None or row["edge"] in names


def _names(path: Path) -> set[str]:
    """The names of all tensors of a model."""
    return {name for node in onnx.load(path).graph.node for name in (*node.input, *node.output)}


VERSION_2 = Path(__file__).parent / "result_v2.json"  # of a real run on xnnpack


def test_a_result_of_version_2_is_read_without_losing_information() -> None:
    old, result = json.loads(VERSION_2.read_text()), dovetail.load_result(VERSION_2)
    assert (old["schema_version"], result.schema_version) == (2, 4)
    assert_same_verdicts(old, result)
    placement, before = result.metrics.placement, old["metrics"]["placement"]
    assert placement is not None
    assert (placement.partitions, placement.delegated) == (before["parts"], before["inside"])
    assert [(op.node, op.operation, op.reason) for op in placement.undelegated] == [
        (op["node"], op["operation"], op["why"]) for op in before["outside"]
    ]
    assert before["outside"], "the example must have an undelegated operation"


def test_the_documentation_lists_every_condition_of_every_verdict() -> None:
    text = (Path(__file__).parents[2] / "docs/result.md").read_text()
    for name in PASSES_WHEN:
        for condition, when in passes_when(name, Thresholds()).items():
            assert f"| `{name}` | {condition} | {when} |" in text


VERSION_3 = Path(__file__).parent / "result_v3.json"  # of a real run on ort-cpu, with fewer rows


def test_a_result_of_version_3_is_read_without_losing_information() -> None:
    old, result = json.loads(VERSION_3.read_text()), dovetail.load_result(VERSION_3)
    assert (old["schema_version"], result.schema_version) == (3, 4)
    now = json.loads(result.to_json())
    assert (now.pop("operators"), now["metrics"].pop("ranges")) == ([], [])
    assert {**now, "schema_version": 3} == old


def test_the_operators_and_the_worst_tensors_of_a_run_are_recorded(written: Path) -> None:
    result = dovetail.load_result(written)
    assert [(row.op_type, row.inputs, row.outputs) for row in result.operators] == [
        ("Relu", ("x",), ("a",)),
        ("Neg", ("a",), ("y",)),
    ]
    data = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    assert {recorded.tensor for recorded in result.metrics.ranges} == {row.tensor for row in result.metrics.tensors}
    (recorded,) = (recorded for recorded in result.metrics.ranges if recorded.tensor == "x")
    assert (recorded.low, recorded.high, recorded.samples) == (data.min(), data.max(), 4)
    expected, _ = np.histogram(data.astype(np.float64), bins=64, range=(float(data.min()), float(data.max())))
    assert list(recorded.counts) == expected.tolist()
