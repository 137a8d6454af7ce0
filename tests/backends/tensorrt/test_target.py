"""The target as a user meets it: shipped models, the device folder and its outputs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import dovetail
from dovetail import zoo
from dovetail.backend import DeviceLatency
from dovetail.calibrate.user_code import load_function
from dovetail.cli.main import main
from dovetail.errors import InputError
from dovetail.finding import Severity, Status, Thresholds
from dovetail.plan.rows import read_plan
from dovetail.report.result import Result, load_result
from dovetail.report.terminal import print_result
from dovetail.stage_files import load_compiled
from dovetail.targets import open_target
from dovetail.targets.tensorrt.compile import LAYERS
from dovetail.targets.tensorrt.device_files import read_device
from dovetail.targets.tensorrt.device_session import read_export
from dovetail.verify.verdicts import fidelity
from tests.backends.tensorrt import device_files
from tests.backends.tensorrt.building import attention_note

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")

# Held-out images for accuracy (`python -m bench.tensorrt` takes all), and for SQNR.
IMAGES = 500


COMPARED = 100


# The largest drop of accuracy, as a fraction and, for the small set of digits, in images.
MOST_LOST_POINTS, MOST_LOST_DIGITS = 0.003, 2


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Result, Path]]:
    """Fit a shipped model in FP8, with its held-out data and metric."""
    done: dict[str, tuple[Result, Path]] = {}

    def fit(name: str) -> tuple[Result, Path]:
        if name not in done:
            shipped, run = zoo.load(name), tmp_path_factory.mktemp(name) / "run"
            done[name] = (
                dovetail.fit(
                    shipped.model_path,
                    target="tensorrt:sm89",
                    precision="fp8",
                    range="mse",
                    calibration=shipped.calib(),
                    evaluation={k: v[:IMAGES] for k, v in {**shipped.eval(), **shipped.targets()}.items()},
                    metric=load_function(shipped.metric),
                    output=run,
                ),
                run,
            )
        return done[name]

    return fit


@pytest.mark.parametrize("name", ["vit_digits", "vit_fashion"])
def test_shipped_models_in_fp8(name: str, fitted: Callable[[str], tuple[Result, Path]]) -> None:
    result, _ = fitted(name)
    statuses = {key: verdict.status for key, verdict in result.verdicts.items()}
    passed = dict.fromkeys(("normalized", "compiled", "fidelity", "accuracy"), Status.PASS)
    assert statuses == {**passed, "numerics": Status.NOT_CHECKED, "device": Status.NOT_CHECKED}
    assert result.verdicts["numerics"].reason.startswith("an engine runs only on its GPU")
    assert result.metrics.accuracy is not None
    figures = result.metrics.accuracy.figures
    lost = figures["float"]["top1"] - figures["simulation"]["top1"]
    assert lost <= (MOST_LOST_DIGITS / 450 + 1e-9 if name == "vit_digits" else MOST_LOST_POINTS)
    types = "Half -> FP8" if name == "vit_digits" else "FP8 -> FP8"  # 17 tokens are too few for the FP8 kernel
    assert attention_note(4, f"4 ({types})") in result.notes


def test_the_model_file_is_unchanged_and_the_engine_ships(
    fitted: Callable[[str], tuple[Result, Path]],
) -> None:
    result, run = fitted("vit_digits")
    assert result.metrics.size_bytes.keys() == {"float", "engine.trt"}
    assert result.metrics.size_bytes["engine.trt"] == (run / "compile/engine.trt").stat().st_size
    assert hashlib.sha256(zoo.load("vit_digits").model_path.read_bytes()).hexdigest() == result.model_sha256


@pytest.mark.parametrize("name", ["vit_digits", "vit_fashion"])
def test_no_worse_than_per_tensor_scales_from_the_maximum(
    name: str, fitted: Callable[[str], tuple[Result, Path]], tmp_path: Path
) -> None:
    from bench.tensorrt_baseline import max_calibrated, sqnr_db

    _, run = fitted(name)
    shipped = zoo.load(name)
    naive = max_calibrated(run, open_target("tensorrt"), "fp8", tmp_path)
    samples = [{"images": image[None]} for image in shipped.eval()["images"][:COMPARED]]
    ours, base = (sqnr_db(shipped.model_path, path, samples, "logits") for path in (run / "model.onnx", naive))
    assert ours >= base > 20


def device_outputs(run: Path) -> Path:
    """The outputs of the simulation, written as trtexec exports them."""
    folder, outputs = run / "device", run / "outputs"
    outputs.mkdir(exist_ok=True)
    for number in range(8):
        logits = np.load(folder / "expected" / "simulation" / f"{number:03d}" / "logits.npy")
        rows = [{"name": "logits", "dimensions": "x".join(map(str, logits.shape)), "values": logits.ravel().tolist()}]
        (outputs / f"{number:03d}.json").write_text(json.dumps(rows))
    return outputs


def test_the_device_folder_and_the_outputs_of_trtexec(fitted: Callable[[str], tuple[Result, Path]]) -> None:
    _, run = fitted("vit_digits")
    commands = (run / "device" / "trtexec.sh").read_text().splitlines()
    assert commands[3].split()[1:] == [
        "--loadEngine=engine.trt",
        "--loadInputs=images:input_000/images.raw",
        "--exportOutput=outputs/000.json",
        "--exportTimes=outputs/times_000.json",
        "--exportLayerInfo=outputs/layer_info.json",
        "--profilingVerbosity=detailed",
    ]
    outputs = device_outputs(run)
    result = dovetail.verify_device(run, device_outputs=outputs)
    assert result.verdicts["device"].status is Status.PASS
    assert result.metrics.latency_device is None
    (outputs / "003.json").write_text(
        '[ { "name" : "logits"\n , "dimensions" : "1x10"\n , "values" : [ nan, -inf ] } ]'
    )
    with pytest.raises(InputError, match=r"003\.json is not in the format that the vendor's tool exports"):
        dovetail.verify_device(run, device_outputs=outputs)
    values = ", ".join(["nan", "-inf", *["0.5"] * 8])
    (outputs / "003.json").write_text(f'[ {{ "name" : "logits", "dimensions" : "1x10", "values" : [ {values} ] }} ]')
    assert np.isnan(read_export(outputs / "003.json")["logits"][0, 0])
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["device"].status is Status.FAIL


# Stands in for the SDK's tool, which is not available here: it takes the options and writes the files they name.
TOOL = """#!{python}
import json, pathlib, re, sys
import numpy as np
if "--help" in sys.argv:
    sys.exit(print("&&&& RUNNING TensorRT.trtexec [TensorRT v101200] # trtexec --help"))
options = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[1:])
assert options["loadEngine"].endswith("engine.trt") and options["profilingVerbosity"] == "detailed"
name, file = options["loadInputs"].split(":", 1)
assert name == "'images'" and np.fromfile(file, np.float32).size
number = re.search(r"times_(\\d+)", options["exportTimes"])[1]
logits = np.load(pathlib.Path(options["loadEngine"]).parent / "expected" / "simulation" / number / "logits.npy")
rows = [dict(name="logits", dimensions="x".join(map(str, logits.shape)), values=logits.ravel().tolist())]
pathlib.Path(options["exportOutput"]).write_text(json.dumps(rows))
pathlib.Path(options["exportTimes"]).write_text('[ {{ "computeMs" : 0.25, "latencyMs" : 0.5 }} ]')
pathlib.Path(options["exportLayerInfo"]).write_text(pathlib.Path({info!r}).read_text())
"""


def test_the_script_in_the_device_folder_writes_all_files_that_verify_reads(
    fitted: Callable[[str], tuple[Result, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = fitted("vit_fashion")
    info, tool, outputs = tmp_path / "info.json", tmp_path / "trtexec", run / "device" / "outputs"
    info.write_text(json.dumps(device_files.layer_info(run / "compile" / "layers.txt")))
    tool.write_text(TOOL.format(python=sys.executable, info=str(info)))
    tool.chmod(0o755)
    script = [sys.executable, str(run / "device" / "run_on_device.py")]
    subprocess.run(script, check=True, env={**os.environ, "TRTEXEC": str(tool)}, stdout=subprocess.DEVNULL)
    assert {path.name for path in outputs.iterdir()} >= {"000", "ran.json", "layer_info.json", "times_000.json"}
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(run)])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "measured on the device, median of 8 runs by trtexec --exportTimes: 250 us" in " ".join(printed.split())
    result = load_result(run / "result.json")
    assert result.verdicts["device"].status is Status.PASS
    assert result.verdicts["fidelity"].evidence.startswith("layer_info.json")
    assert result.metrics.latency_device == DeviceLatency(250.0, 500.0, 8, "trtexec --exportTimes")


@pytest.mark.parametrize("long", [False, True])
def test_layers_and_times_from_the_device_fill_the_same_fields(
    long: bool, fitted: Callable[[str], tuple[Result, Path]]
) -> None:
    before, run = fitted("vit_fashion")
    outputs, info = device_outputs(run), device_files.layer_info(run / "compile" / "layers.txt", long=long)
    device_files.write(outputs, info, compute_ms=0.5)
    (outputs / "times_001.json").write_text(device_files.times(0.7, runs=4))
    result = dovetail.verify_device(run, device_outputs=outputs)
    assert result.read_back == before.read_back
    assert result.verdicts["fidelity"].status is Status.PASS
    assert result.verdicts["fidelity"].evidence.startswith("layer_info.json")
    blocks = attention_note(4, "4 (FP8 -> FP8)")
    assert f"on the device: {blocks}" in result.notes
    assert result.metrics.latency_device == DeviceLatency(700.0, 1000.0, 7, "trtexec --exportTimes")
    printed = io.StringIO()
    print_result(result, run, Console(file=printed, width=200))
    assert "measured on the device, median of 7 runs by trtexec --exportTimes: 700 us of compute" in printed.getvalue()


def test_a_layer_list_in_an_unknown_format_is_not_checked_and_quoted(
    fitted: Callable[[str], tuple[Result, Path]], tmp_path: Path
) -> None:
    _, run = fitted("vit_digits")
    compiled, plan = load_compiled(run), read_plan(run / "plan.json")
    layers = next(a for a in compiled.artifacts if a.name == LAYERS).path
    broken = tmp_path / "layers.txt"
    broken.write_text(layers.read_text().replace("LayerType: gemm", "Kind: gemm", 1))
    artifacts = tuple(replace(a, path=broken) if a.name == LAYERS else a for a in compiled.artifacts)
    verdict = fidelity(
        open_target("tensorrt").backend.read_back(replace(compiled, artifacts=artifacts), plan), Thresholds()
    )
    assert verdict.status is Status.NOT_CHECKED
    assert verdict.reason.startswith("the compiled graph could not be parsed: unknown format in line 'Name: ")


def test_an_attention_that_is_not_fused_on_the_device_fails(fitted: Callable[[str], tuple[Result, Path]]) -> None:
    _, run = fitted("vit_fashion")
    outputs, info = device_outputs(run), device_files.layer_info(run / "compile" / "layers.txt")
    (attention, *_) = attentions(info)
    attention["Name"], attention["Inputs"][0]["Format/Datatype"] = "__myl_Fc", "Half"
    device_files.write(outputs, info)
    result = dovetail.verify_device(run, device_outputs=outputs)
    assert result.verdicts["fidelity"].status is Status.FAIL
    assert f"on the device: {attention_note(4, '3 (FP8 -> FP8)')}" in result.notes
    assert [finding.severity for finding in result.findings if finding.code == "Q821"] == [Severity.ERROR]


def test_without_a_float16_engine_an_unfused_attention_is_not_checked(
    fitted: Callable[[str], tuple[Result, Path]], tmp_path: Path
) -> None:
    """For a GPU that the builder does not support, the layer list comes from the device only."""
    _, run = fitted("vit_fashion")
    compiled, plan = load_compiled(run), read_plan(run / "plan.json")
    emitted = replace(compiled, artifacts=compiled.artifacts[:1])
    info = device_files.layer_info(run / "compile" / "layers.txt")
    device_files.write(tmp_path, info)
    report = read_device(tmp_path, emitted, plan)
    assert report.notes[1] == "4 attention blocks: as one kernel in the planned type: 4 (FP8 -> FP8)"
    assert report.read_back is not None
    assert fidelity(report.read_back, Thresholds()).status is Status.PASS
    # Its two MatMuls still run in FP8, but as separate kernels.
    (attention, *_) = attentions(info)
    attention["Name"] = attention["LayerType"] = "gemm"
    device_files.write(tmp_path, info)
    report = read_device(tmp_path, emitted, plan)
    assert report.read_back is not None
    assert fidelity(report.read_back, Thresholds()).status is Status.NOT_CHECKED
    assert [finding.severity for finding in report.findings] == [Severity.WARNING]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        (
            "layer_info.json",
            '{"Layers": [\n {"Name": "a",\n oops',
            "layer_info.json is not valid JSON, line 3: 'oops'",
        ),
        (
            "layer_info.json",
            '{"Layers": ["only a name"]}',
            "only names of layers, export it with --profilingVerbosity=detailed: 'only",
        ),
        (
            "layer_info.json",
            '{"Layers": [{"Name": "a"}]}',
            'layer_info.json: unknown format of layer \'{"Name": "a"}\'',
        ),
        ("layer_info.json", "[]", "layer_info.json has no list of layers: '[]'"),
        (
            "times_000.json",
            '[\n { "computeMs" : 1,\n',
            "times_000.json is not valid JSON, line 2: '{ \"computeMs\" : 1,'",
        ),
        ("times_000.json", '[{"computeMs": 1}]', "a run without computeMs and latencyMs"),
    ],
)
def test_a_file_in_an_unknown_format_is_not_checked_and_quoted(
    file: str, content: str, reason: str, fitted: Callable[[str], tuple[Result, Path]]
) -> None:
    _, run = fitted("vit_fashion")
    outputs = device_outputs(run)
    device_files.write(outputs, device_files.layer_info(run / "compile" / "layers.txt"))
    (outputs / file).write_text(content)
    result = dovetail.verify_device(run, device_outputs=outputs)
    assert result.verdicts["device"].status is Status.PASS
    if file.startswith("times"):
        assert reason in result.metrics.not_measured
        assert result.metrics.latency_device is None
    else:
        assert result.verdicts["fidelity"].status is Status.NOT_CHECKED
        assert reason in result.verdicts["fidelity"].reason
        assert result.metrics.latency_device is not None


def attentions(info: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in info["Layers"] if "_mha" in row["Name"]]


def test_without_layers_from_the_device_the_built_engine_is_checked_again(
    fitted: Callable[[str], tuple[Result, Path]],
) -> None:
    before, run = fitted("vit_fashion")
    outputs, info = device_outputs(run), device_files.layer_info(run / "compile" / "layers.txt")
    attentions(info)[0].update(Name="__myl_Fc", LayerType="gemm")
    device_files.write(outputs, info)
    assert dovetail.verify_device(run, device_outputs=outputs).verdicts["fidelity"].status is Status.FAIL
    (outputs / "layer_info.json").write_text("[]")
    unread = dovetail.verify_device(run, device_outputs=outputs)
    assert unread.verdicts["fidelity"].status is Status.NOT_CHECKED
    assert (unread.findings, unread.read_back) == (before.findings, before.read_back)
    (outputs / "layer_info.json").unlink()
    after = dovetail.verify_device(run, device_outputs=outputs)
    assert after.verdicts["fidelity"] == before.verdicts["fidelity"]
    assert (after.findings, after.read_back) == (before.findings, before.read_back)
