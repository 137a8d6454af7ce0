"""``--encodings`` on fit, check and repair: the scales of a file instead of calibrated ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.calibrate.moved_tensors import holds_values, moved_tensors
from dovetail.cli.main import main
from dovetail.encodings_run import with_precision
from dovetail.errors import InputError
from dovetail.storage import ScaleSource
from tests.equality import model_from, normal

SAMPLES = Path(__file__).parent / "encodings" / "samples"
MODEL = SAMPLES / "tiny.onnx"


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as done:
        main([*map(str, arguments)])
    return int(done.value.code or 0)


def without(name: str, entries: tuple[str, ...], folder: Path) -> Path:
    """A sample file without some of its entries."""
    document = json.loads((SAMPLES / name).read_bytes())
    for key in ("activation_encodings", "param_encodings"):
        document[key] = [entry for entry in document[key] if entry["name"] not in entries]
    path = folder / "less.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("version", ["0.6.1", "1.0.0", "2.0.0"])
def test_fit_ships_the_scales_of_the_file_without_calibration_data(version: str, tmp_path: Path) -> None:
    result = dovetail.fit(MODEL, target="ort-cpu", encodings=SAMPLES / f"w8a16_{version}.json", output=tmp_path / "run")
    assert result.precision == "w8a16"
    assert not result.failed
    given = {row.original_name: row for row in result.plan if row.scale_from is ScaleSource.GIVEN}
    assert {"x", "relu_out", "add_out", "conv.w", "mm.w"} <= set(given)
    assert given["x"].scale == pytest.approx(6.714924036469695e-05)
    assert given["x"].zero_point == 35715
    assert not [row for row in result.plan if row.scale_from is ScaleSource.CALIBRATED]
    record = json.loads((tmp_path / "run" / "encodings.json").read_bytes())
    assert record["version"] == version
    assert (record["changed"], record["surplus"]) == ({}, [])
    scales = [onnx.numpy_helper.to_array(i) for i in onnx.load(tmp_path / "run" / "model.onnx").graph.initializer]
    weight = np.asarray(given["mm.w"].scale, np.float32)
    assert any(array.dtype == np.float32 and np.array_equal(array, weight) for array in scales)


def test_missing_and_surplus_names_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = without("w8a16_1.0.0.json", ("relu_out",), tmp_path)
    document = json.loads(file.read_bytes())
    document["activation_encodings"].append({**document["activation_encodings"][0], "name": "nowhere"})
    file.write_text(json.dumps(document))
    command = ("fit", MODEL, "--encodings", file, "--target", "ort-cpu", "-o", tmp_path / "run")
    assert run(*command) == 2
    assert "the encodings have no scale for 'relu_out'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert run(*command, "--calib", "random") == 0
    assert "the model has no tensor 'nowhere'" in capsys.readouterr().out.replace("\n", " ")
    record = json.loads((tmp_path / "run" / "encodings.json").read_bytes())
    assert record["surplus"] == ["nowhere"]
    assert "by minmax" in record["missing"]["relu_out"]


def test_the_precision_is_that_of_the_file(tmp_path: Path) -> None:
    files = {"w8a16_0.6.1": "w8a16", "w4a16_pc_2.0.0": "w4a16", "w4a16_bq_1.0.0": "w4a16-bq"}
    for name, precision in files.items():
        values = with_precision({"target": "ort-cpu"}, MODEL, SAMPLES / f"{name}.json")
        assert values["precision"] == precision
    assert values["block_size"] == 2
    assert with_precision({"target": "ort-cpu", "precision": "w8a8"}, MODEL, tmp_path)["precision"] == "w8a8"
    with pytest.raises(InputError, match=r"w4a16_lpbq_2.0.0.json: most weights have blocks of 2, but HTP"):
        with_precision({"target": "qnn-htp:v75"}, MODEL, SAMPLES / "w4a16_lpbq_2.0.0.json")
    with pytest.raises(
        InputError, match=r"most weights are int8 \(axis\) and most activations uint16, which is no prec"
    ):
        with_precision({"target": "xnnpack"}, MODEL, SAMPLES / "w8a16_1.0.0.json")
    document = json.loads((SAMPLES / "w8a16_0.6.1.json").read_bytes())
    (tmp_path / "no_weights.json").write_text(json.dumps({**document, "param_encodings": {}}))
    with pytest.raises(InputError, match=r"no_weights\.json: no entry quantizes a weight of this model"):
        with_precision({"target": "ort-cpu"}, MODEL, tmp_path / "no_weights.json")


def test_a_plan_and_encodings_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = SAMPLES / "w8a16_1.0.0.json"
    assert run("fit", MODEL, "--encodings", file, "--plan", "p", "--target", "ort-cpu", "-o", tmp_path / "run") == 2
    assert "--encodings cannot be combined with --plan" in capsys.readouterr().err


def test_check_reports_what_the_target_makes_of_the_scales(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("check", MODEL, "--encodings", SAMPLES / "w8a16_2.0.0.json", "--target")
    assert run(*command, "qnn-htp:v75") == 0
    assert "0 findings in tiny.onnx" in capsys.readouterr().out
    assert run(*command, "xnnpack") == 2
    assert "which is no precision of xnnpack" in capsys.readouterr().err


def test_repair_compares_with_the_float_model(tmp_path: Path) -> None:
    file = SAMPLES / "w8a16_1.0.0.json"
    samples = np.random.default_rng(0).normal(size=(4, 4, 3, 3)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=samples)
    command = ("repair", MODEL, "--encodings", file, "--target", "ort-cpu", "--calib", tmp_path / "calib.npz")
    assert run(*command, "-o", tmp_path / "run") == 0
    result = json.loads((tmp_path / "run" / "result.json").read_bytes())
    assert result["verdicts"]["repaired"]["status"] == "pass"
    assert {"x", "relu_out", "conv.w at conv:1"} <= set(
        json.loads((tmp_path / "run" / "repair.json").read_bytes())["kept"]
    )


def test_tensors_that_hold_the_values_of_another_one() -> None:
    original = normal(2, 3, 12)
    assert holds_values(original, original.transpose(2, 0, 1).reshape(12, 6))
    assert holds_values(original, original[..., 4:8].reshape(6, 4))
    assert not holds_values(original, original * np.float32(0.5))
    assert not holds_values(original, original[..., 4:8] * np.float32(0.5))
    assert not holds_values(original[0], original)


def test_a_scaled_tensor_is_not_a_moved_one(tmp_path: Path) -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { a = Relu(x) b = Neg(a) y = Relu(b) }"
    original = model_from(text)
    rewritten = model_from("g (float[2,4] x) => (float[2,4] y) { f = Relu(x) h = Neg(f) y = Relu(h) }")
    for value in ("f", "h"):
        node = next(n for n in rewritten.graph if n.outputs[0].name == value)
        node.outputs[0].metadata_props.update({"dovetail.origin": "a", "dovetail.derived": "1"})
    assert moved_tensors(original, rewritten, ["a"], {"x": normal(2, 4)}, tmp_path) == {"f": "a"}


def test_the_functions_check_and_repair_take_encodings(tmp_path: Path) -> None:
    file = SAMPLES / "w8a16_2.0.0.json"
    assert dovetail.check(MODEL, target="ort-cpu", encodings=file) == ()
    result = dovetail.repair(MODEL, target="ort-cpu", encodings=file, output=tmp_path / "run")
    assert result.precision == "w8a16"
    assert not result.failed
    with pytest.raises(InputError, match=r"model.onnx is already quantized: --encodings requires the float model"):
        dovetail.repair(tmp_path / "run" / "model.onnx", target="ort-cpu", encodings=file, output=tmp_path / "again")


@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
def test_blocks_of_an_encodings_file_become_lpbq(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after a Reshape and a Transpose, whose outputs have no entry in files below 2.0.0."""
    file = SAMPLES / f"w4a16_bq_{version}.json"
    command = ("repair", MODEL, "--encodings", file, "--to-lpbq", "--target", "ort-cpu", "--calib", "random")
    assert run(*command, "-o", tmp_path / "run") == 0
    assert "to_lpbq: applied at 2 sites" in capsys.readouterr().out
    result = json.loads((tmp_path / "run" / "result.json").read_bytes())
    weights = [row for row in result["plan"] if row["edge"] and row["dtype"] == "int4"]
    assert [(row["granularity"], row["block_size"]) for row in weights] == [("expanded_block", 2)] * 2


def test_a_run_with_encodings_is_resumed_with_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_bytes((SAMPLES / "w8a16_1.0.0.json").read_bytes())
    arguments = {"target": "ort-cpu", "encodings": file, "output": tmp_path / "run"}
    first = dovetail.fit(MODEL, **arguments)
    shipped = (tmp_path / "run" / "model.onnx").read_bytes()
    stamp = (tmp_path / "run" / "stages" / "normalize.key").stat().st_mtime_ns
    again = dovetail.fit(MODEL, **arguments, resume=True)
    assert (tmp_path / "run" / "model.onnx").read_bytes() == shipped
    assert (tmp_path / "run" / "stages" / "normalize.key").stat().st_mtime_ns == stamp
    assert again.plan == first.plan
    file.write_bytes((SAMPLES / "w8a16_0.6.1.json").read_bytes())
    with pytest.raises(InputError, match=r"cannot be resumed, because the run was started with another encodings"):
        dovetail.fit(MODEL, **arguments, resume=True)
    without_file = {"target": "ort-cpu", "calibration": "random", "precision": "w8a16", "output": tmp_path / "run"}
    with pytest.raises(InputError, match=r"cannot be resumed, because the run was started with another encodings"):
        dovetail.fit(MODEL, **without_file, resume=True)
