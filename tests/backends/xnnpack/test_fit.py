"""The whole pipeline for XNNPACK on a small vision transformer, and its device folder on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rich.console import Console

import dovetail
from dovetail.backend import BaselineCase, MeasuredLatency, Outcome, Sample, TimedProgram, UndelegatedOp
from dovetail.finding import Status
from dovetail.plan.rows import read_plan
from dovetail.report.terminal import print_result
from dovetail.targets.xnnpack.measure import STOCK, baselines, measure
from dovetail.targets.xnnpack.options import read_options
from dovetail.targets.xnnpack.read_back import read_operator_list
from dovetail.trials.knobs.mixed import MOST_TIMED
from dovetail.trials.latency import SAME_TIME
from tests.device import runs
from tests.networks.outlier_layers import outlier_layers, outlier_samples
from tests.networks.text_vit import MODEL

pytest.importorskip("executorch", reason="needs the package executorch")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xnnpack")
    onnx.save(onnx.parser.parse_model(MODEL), folder / "vit.onnx")
    images = np.random.default_rng(1).standard_normal((6, 3, 8, 8)).astype(np.float32)
    held_out = np.random.default_rng(2).standard_normal((20, 3, 8, 8)).astype(np.float32)
    dovetail.fit(
        folder / "vit.onnx",
        target="xnnpack",
        precision="auto",
        calibration={"image": images},
        output=folder / "run",
        evaluation={"image": held_out, "label": np.zeros(len(held_out), np.int64)},
        metric=first_class,
    )
    return folder / "run"


@pytest.mark.parametrize(
    ("nodes", "size"), [("y = LayerNormalization(x, w)", 4), ("y = Slice(x, zero, four, last)", 8)]
)
def test_a_plan_that_quantizes_nothing_is_read_back_too(nodes: str, size: int, tmp_path: Path) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[1, {size}] x) => (float[1, 4] y)
        <float[4] w = {{1, 2, 3, 4}}, int64[1] zero = {{0}}, int64[1] four = {{4}}, int64[1] last = {{1}}>
        {{ {nodes} }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    images = np.random.default_rng(1).standard_normal((6, size)).astype(np.float32)
    options = {"target": "xnnpack", "precision": "w8a8", "baselines": "none"}
    result = dovetail.fit(tmp_path / "m.onnx", calibration={"x": images}, output=tmp_path / "run", **options)
    assert not any(row.scale for row in result.plan)
    assert [row.tensor for row in result.read_back] == ["y"]
    assert result.verdicts["fidelity"].status is Status.PASS


def test_what_is_kept_in_float_is_read_back(tmp_path: Path) -> None:
    """A Gemm that the program computes in int8 although it is kept in float is reported."""
    weights = ", ".join(["0.5", "-0.25"] * 8)
    body = f"""g (float[1, 4] x) => (float[1, 4] y) <float[4, 4] w = {{{weights}}}, float[4, 4] v = {{{weights}}}>
        {{ [first] a = Gemm(x, w)  [second] b = Gemm(a, v)  [third] y = Gemm(b, w) }}"""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {body}'), tmp_path / "m.onnx")
    images = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
    calibration = {"x": images}
    run = tmp_path / "run"
    result = dovetail.fit(
        tmp_path / "m.onnx",
        target="xnnpack",
        precision="w8a8",
        keep=("second=fp32",),
        baselines="none",
        calibration=calibration,
        output=run,
    )
    assert result.verdicts["fidelity"].status is Status.PASS
    kept = {(row.tensor, row.outcome) for row in result.read_back if row.detail.startswith("computed in float")}
    assert kept == {(tensor, Outcome.MATCHED) for tensor in ("a", "b", "v")}
    census = json.loads((run / "compile/census.json").read_text())
    for operator in census["operators"]:
        if operator["node"] == "b/MatMul" and operator["kind"] != "Convert":
            operator["output"]["dtype"] = "qint8"
    (tmp_path / "census.json").write_text(json.dumps(census))
    read_back = read_operator_list(run / "model.onnx", tmp_path / "census.json", read_plan(run / "plan.json"))
    changed = [(row.tensor, row.detail) for row in read_back.tensors if row.outcome is Outcome.CHANGED]
    assert [tensor for tensor, detail in changed if "planned float32, found int8: in " in detail] == ["b"]


def first_class(outputs: Iterator[Sample], targets: Iterator[Sample]) -> dict[str, float]:
    hits = [int(np.argmax(o["logits"])) == t["label"].item() for o, t in zip(outputs, targets, strict=True)]
    return {"first": float(np.mean(hits))}


def test_every_verdict_passes(run: Path) -> None:
    result = dovetail.load_result(run / "result.json")
    for name in ("normalized", "compiled", "fidelity", "numerics", "accuracy"):
        assert result.verdicts[name].status is Status.PASS, (name, result.verdicts[name].reason)
    assert result.verdicts["device"].status is Status.NOT_CHECKED
    agreement = result.metrics.sqnr_db.target_vs_simulation
    assert agreement is not None
    assert (agreement["logits"] or 0) > 60


def test_auto_compares_plans_by_measured_time_and_gives_the_reason(run: Path) -> None:
    result = dovetail.load_result(run / "result.json")
    (decision, *_) = result.decisions
    assert {"w8a8", "w8a8-dynamic", "fp32"} <= {alternative.label for alternative in decision.alternatives}
    timed = {row.label: row.figures for row in decision.alternatives if "latency_us" in row.figures}
    assert 1 < len(timed) <= MOST_TIMED
    assert all(row.failure == "" for row in decision.alternatives)
    least_us = min(figures["latency_us"] for figures in timed.values())
    assert timed[decision.taken]["latency_us"] <= (1 + SAME_TIME) * least_us
    console = Console(record=True, width=200)
    print_result(result, run, console)
    text = console.export_text()
    assert f"mixed: {decision.taken}; " in text
    assert f"> {decision.taken}" in text
    assert "operations are delegated to the backend in 1 partition, 0 are not" in text
    assert not (run / "stages/trials").exists(), "the programs compiled for the choice are used or removed"


def test_latency_is_compared_with_the_file_as_given(run: Path) -> None:
    measured = dovetail.load_result(run / "result.json").metrics.latency_measured
    assert measured is not None
    assert measured.baseline == "stock-fp32"
    assert list(measured.median_us) == ["fitted", "stock-fp32"]
    assert measured.ratios["stock-fp32"] == 1.0
    assert measured.rounds >= 11
    assert measured.notes == ()
    assert 0 < measured.ratios["fitted"] < 2
    stock = json.loads((run / "compile/baseline_stock-fp32/census.json").read_text())
    undelegated = {row["op"] for row in stock["outside"]}
    assert {"expand_copy.default", "select_copy.int", "split_with_sizes_copy.default"} <= undelegated
    assert {row["output"]["dtype"] for row in stock["operators"]} == {"fp32"}
    ops = {node.op_type for node in onnx.load(run / "compile/baseline_stock-fp32/model.onnx").graph.node}
    assert {"Gather", "Split"} <= ops, "the stock program has none of our rewrites"


UNMAPPED = """<ir_version: 10, opset_import: ["": 20]>
g (float[2,3] x) => (float[2,3] y) {
    d = Dropout(x)  k = Constant<value = float[3] {1,2,3}>()  [norm] y = LayerNormalization(d, k)
}"""


def test_a_stock_program_of_the_normalized_graph_has_a_note(tmp_path: Path) -> None:
    path, options = tmp_path / "model.onnx", read_options({})
    onnx.save(onnx.parser.parse_model(UNMAPPED), path)
    sample = {"x": np.ones((2, 3), np.float32)}
    stock = baselines(options)[0].build(BaselineCase(ir.load(path), path, "w8a8", [sample], {}), tmp_path)
    assert stock.error == ""
    assert stock.placement is not None
    assert stock.placement.undelegated == (
        UndelegatedOp("norm", "native_layer_norm.default", "XNNPACK has no layer norm"),
    )
    measured = measure(options, {STOCK: TimedProgram(stock, sample)}, STOCK)
    assert isinstance(measured, MeasuredLatency)
    (note,) = measured.notes
    assert note.startswith("stock-fp32 is the normalized graph, because the file as given could not be lowered: ")
    assert "'Dropout', which has no mapping to torch" in note, "a Constant is supported"


def test_everything_is_delegated(run: Path) -> None:
    placement = dovetail.load_result(run / "result.json").metrics.placement
    assert placement is not None
    assert placement.undelegated == ()
    assert placement.partitions == 1
    assert placement.delegated > 20


def test_the_device_folder_runs_on_this_machine_which_is_no_device(run: Path, tmp_path: Path) -> None:
    phone = shutil.copytree(run / "device", tmp_path / "phone")
    assert "dovetail" not in (phone / "device_session.py").read_text()
    done = runs.on_device(phone)
    assert done.returncode == 0, done.stderr
    record = json.loads((phone / "outputs/ran.json").read_text())
    assert record["model"] == "model.pte"
    verdict = dovetail.verify_device(run, device_outputs=phone / "outputs").verdicts["device"]
    assert "device and simulation agree" in verdict.reason
    assert verdict.status is (Status.NOT_CHECKED if record["emulated"] else Status.PASS)


RUNNER = """#!/bin/sh
echo "$@" >> called.txt
for flag in "$@"; do case $flag in --output_file=*) printf 1234 > "${flag#--output_file=}-0.bin" ;; esac; done
"""


def test_the_script_for_executor_runner_writes_the_files_that_verify_reads(run: Path, tmp_path: Path) -> None:
    """The binary is not in the wheel: a script stands in for it, which takes its flags and writes its output files."""
    phone = shutil.copytree(run / "device", tmp_path / "phone")
    runner = phone / "executor_runner"
    runner.write_text(RUNNER)
    runner.chmod(0o755)
    done = subprocess.run(["sh", phone / "run_executor_runner.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    calls = (phone / "called.txt").read_text().splitlines()
    assert calls[1] == "--model_path=model.pte --inputs=input_001/image.raw --output_file=outputs/001/output"
    assert len(calls) == 8
    assert [path.name for path in (phone / "outputs/005").iterdir()] == ["logits.raw"]


def test_the_size_is_that_of_the_program(run: Path) -> None:
    size_bytes = dovetail.load_result(run / "result.json").metrics.size_bytes
    files = {"float": run.parent / "vit.onnx", "model.pte": run / "compile/model.pte"}
    assert size_bytes == {name: file.stat().st_size for name, file in files.items()}


def test_auto_with_a_budget_keeps_the_layer_with_the_outlier_out_of_static_int8(tmp_path: Path) -> None:
    ir.save(outlier_layers(300, 300), tmp_path / "model.onnx")
    result = dovetail.fit(
        tmp_path / "model.onnx",
        target="xnnpack",
        precision="auto",
        calibration=outlier_samples(40),
        max_float=0.5,
        max_latency=1000.0,
        output=tmp_path / "run",
    )
    for verdict in ("compiled", "fidelity", "numerics", "accuracy", "budget"):
        assert result.verdicts[verdict].status is Status.PASS, (verdict, result.verdicts[verdict].reason)
    whole = next(row for row in result.decisions if row.knob == "mixed" and row.is_whole)
    figures = {row.label: row.figures for row in whole.alternatives}
    assert figures[whole.taken]["float_macs_percent"] <= 50
    assert figures[whole.taken]["sqnr_db"] > figures["w8a8"]["sqnr_db"] + 10
    assert any(label.startswith("w8a8 ") and label.endswith(" in w8a8-dynamic") for label in figures)
    assert any(label.startswith("w8a8-dynamic ") and label.endswith(" in fp32") for label in figures)
    timed = [row for row in figures.values() if "latency_ratio" in row]
    assert 1 < len(timed) <= MOST_TIMED


def test_a_program_with_quantized_inputs_is_timed(tmp_path: Path) -> None:
    ir.save(outlier_layers(1, 1), tmp_path / "model.onnx")
    result = dovetail.fit(
        tmp_path / "model.onnx",
        target="xnnpack",
        io="quantized",
        calibration=outlier_samples(8),
        output=tmp_path / "run",
    )
    assert result.failed == ()
    (graph_input,) = ir.load(tmp_path / "run/model.onnx").graph.inputs
    assert graph_input.dtype is ir.DataType.INT8
    measured = result.metrics.latency_measured
    assert measured is not None
    assert all(measured.median_us[name] > 0 for name in ("fitted", "stock-fp32"))
