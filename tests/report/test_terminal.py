"""What is printed: escaped, no wider than the terminal, and only files that exist."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

import dovetail
from dovetail import zoo
from dovetail.report.terminal import print_result

REPROS = Path(__file__).parents[1] / "repros"
BODY = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,4] x) => (float[1,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { h = Relu(x)  y = MatMul(h, w) }"""


def printed(result: dovetail.Result, run: Path, width: int = 80, *, terminal: bool = True) -> str:
    stream = io.StringIO()
    print_result(result, run, Console(file=stream, width=width, force_terminal=terminal, color_system=None))
    return stream.getvalue()


def fit(model: Path, folder: Path, **options: object) -> dovetail.Result:
    arguments = {"target": "ort-cpu", "calibration": "random", "output": folder / "run", **options}
    return dovetail.fit(model, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["out_ansi", "out_long"])
def test_names_are_escaped_and_shortened(name: str, width: int, tmp_path: Path) -> None:
    """The file names of these models are harmless, those of their tensors are not."""
    result = fit(REPROS / f"{name}.onnx", tmp_path)
    text = printed(result, Path("run"), width)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) < 70
    if name == "out_ansi":
        assert "\\x1b[2J" in text


def test_markup_in_names_is_not_interpreted(tmp_path: Path) -> None:
    text = BODY.replace("y)", '"[red]y[/]")').replace("y =", '"[red]y[/]" =')
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    assert "SQNR of [red]y[/] against float" in printed(fit(tmp_path / "model.onnx", tmp_path), Path("run"))


def test_a_line_is_no_wider_than_the_terminal(tmp_path: Path) -> None:
    """With every column and a metric with a long name."""
    onnx.save(onnx.parser.parse_model(BODY), tmp_path / "model.onnx")
    held_out = {"x": np.random.default_rng(5).standard_normal((8, 4)).astype(np.float32)}

    def metric(outputs: Iterator[object], targets: Iterator[object]) -> dict[str, float]:
        samples = len(list(zip(outputs, targets, strict=True)))
        return {"mean average precision over all classes and sizes [COCO]": samples / 10}

    result = fit(tmp_path / "model.onnx", tmp_path, evaluation=held_out, metric=metric)
    text = printed(result, Path("run"))
    assert max(map(len, text.splitlines())) <= 80
    assert "[COCO]" in text


def test_the_printed_files_exist_and_what_ships_is_named(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(BODY), tmp_path / "model.onnx")
    result = fit(tmp_path / "model.onnx", tmp_path)
    size = (tmp_path / "run/model.onnx").stat().st_size
    text = printed(result, tmp_path / "run", 300)
    assert f"ships: model.onnx ({size / 1000:.1f} kB)\n" in text
    assert '  load it with onnxruntime.InferenceSession("model.onnx", session_options)\n' in text
    assert text.endswith(f"run directory: {tmp_path / 'run'}\n  result.json, plan.json\n\n")


def test_a_run_that_stopped_names_no_file_that_is_not_there(tmp_path: Path) -> None:
    shipped = zoo.load("vit_digits")
    calibration = {name: array[:2] for name, array in shipped.calib().items()}
    result = fit(shipped.model_path, tmp_path, calibration=calibration, thresholds={"normalized_db": 199.0})
    text = printed(result, tmp_path / "run")
    assert "ships: nothing, because nothing was compiled" in text
    assert "plan.json" not in text
    assert "  result.json\n" in text


@pytest.mark.parametrize(
    ("target", "package", "file", "load"),
    [
        ("xnnpack", "executorch", "compile/model.pte", "executorch.runtime.Runtime"),
        ("tensorrt:sm89", "tensorrt_rtx", "compile/engine.trt", "deserialize_cuda_engine"),
        ("qnn-htp:sm8550", "onnxruntime_qnn", "compile/context_qnn.bin", "QNNExecutionProvider"),
    ],
)
def test_each_target_says_how_what_it_ships_is_loaded(
    target: str, package: str, file: str, load: str, tmp_path: Path
) -> None:
    pytest.importorskip(package, reason=f"needs the package {package}")
    onnx.save(onnx.parser.parse_model(BODY), tmp_path / "model.onnx")
    result = fit(tmp_path / "model.onnx", tmp_path, target=target, baselines="none")
    (shipped,) = [artifact for artifact in result.artifacts if artifact.shipped]
    assert (shipped.path, (tmp_path / "run" / shipped.path).is_file()) == (file, True)
    assert load in shipped.load
    text = printed(result, tmp_path / "run", 300)
    assert f"ships: {file} (" in text
    assert shipped.load in text
    assert "model.onnx" not in text.rpartition("run directory")[2]
