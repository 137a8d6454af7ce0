"""``dovetail fit``: the run directory, the exit codes, and one clear sentence for every bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.conftest import Run

MODEL = """
<ir_version: 10, opset_import: ["": 21]>
g (float[1,3,8,8] image) => (float[1,5] scores)
<float[4] b = {0.1,-0.2,0.3,0.4}, int64[2] flat = {1,144}, float[5] c = {1,2,3,4,5}>
{
    f = Conv <strides = [1, 1]> (image, k, b)
    r = Relu(f)
    v = Reshape(r, flat)
    m = MatMul(v, w)
    scores = Add(m, c)
}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small model, calibration and held-out data, and metrics."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(MODEL)
    for name, shape in (("k", (4, 3, 3, 3)), ("w", (144, 5))):
        array = random.standard_normal(shape).astype(np.float32) * 0.2
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "calib.npz", image=random.standard_normal((16, 3, 8, 8)).astype(np.float32))
    held_out = random.standard_normal((24, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "eval.npz", image=held_out, labels=random.integers(0, 5, 24))
    (tmp_path / "my_metric.py").write_text(
        "def top1(outputs, targets):\n"
        "    hits = [int(o['scores'].argmax() == t['labels'][0]) for o, t in zip(outputs, targets, strict=True)]\n"
        "    return {'top1': sum(hits) / len(hits)}\n"
        "def bad(outputs, targets):\n    return 3\n"
        "def boom(outputs, targets):\n    raise KeyError('label')\n"
        "def blind(outputs, targets):\n    return {'one': 1.0}\n"
        "def eof():\n    raise EOFError('x')\n    yield\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


BASE = ("fit", "model.onnx", "--target", "ort-cpu", "--calib", "calib.npz", "-o", "run")


def test_a_run_and_its_directory(run: Run, work: Path) -> None:
    code, out, err = run(*BASE, "--eval", "eval.npz", "--metric", "my_metric:top1", "--range", "mse")
    assert (code, err) == (0, "")
    texts = ("top1 on 24 held-out samples", "SQNR of scores", "normalized", "fidelity", "numerics", "directory: run")
    assert all(text in out for text in texts)
    result = json.loads((work / "run/result.json").read_text())
    assert {name: verdict["status"] for name, verdict in result["verdicts"].items()} == {
        "normalized": "pass",
        "compiled": "pass",
        "fidelity": "pass",
        "numerics": "pass",
        "accuracy": "pass",
    }
    assert all(verdict["passes_when"] for verdict in result["verdicts"].values())
    assert result["metrics"]["sqnr_db"]["simulation_vs_float"]["scores"] > 25
    assert set(result["metrics"]["accuracy"]["figures"]) == {"float", "simulation", "target"}
    assert result["metrics"]["accuracy"]["data"]["samples"] == 24
    assert result["calibration"]["samples"] == 16
    assert result["timings_s"]["calibrate"] >= 0
    rows = {(row["tensor"], row["edge"]): row for row in result["plan"]}
    assert rows["image", None]["dtype"] == "uint8"
    assert all(row["why"] and row["detail"] and row["original_name"] for row in result["plan"])
    for artifact in result["artifacts"]:
        assert (work / "run" / artifact["path"]).stat().st_size == artifact["bytes"]
    onnx.checker.check_model(str(work / "run/model.onnx"), full_check=True)


def test_the_same_input_gives_the_same_bytes(run: Run, work: Path) -> None:
    before = (work / "model.onnx").read_bytes()
    assert run(*BASE)[0] == 0
    assert run(*BASE[:-1], "again")[0] == 0
    assert (work / "run/model.onnx").read_bytes() == (work / "again/model.onnx").read_bytes()
    assert (work / "run/plan.json").read_bytes() == (work / "again/plan.json").read_bytes()
    assert (work / "model.onnx").read_bytes() == before


def test_random_data_is_marked_in_every_output(run: Run, work: Path) -> None:
    code, out, _ = run("fit", "model.onnx", "--target", "ort-cpu", "--calib", "random", "-o", "run")
    assert code == 0
    assert "calibrated on random data" in out
    result = json.loads((work / "run/result.json").read_text())
    assert result["calibration"]["random"] is True


def test_an_edited_plan_is_used(run: Run, work: Path) -> None:
    assert run(*BASE)[0] == 0
    plan = json.loads((work / "run/plan.json").read_text())
    factor = 0.25 / next(row["scale"] for row in plan["rows"] if row["tensor"] == "r")
    for row in plan["rows"]:
        if row["tensor"] == "r" or row["original_name"] == "v":
            row.update(scale=0.25, zero_point=0)
        if row["tensor"] == "c":  # the scale of the bias is input scale x weight scale
            row["scale"] = [scale * factor for scale in row["scale"]]
    (work / "edited.json").write_text(json.dumps(plan))
    assert run(*BASE[:-1], "edited", "--plan", "edited.json")[0] == 0
    rows = json.loads((work / "edited/result.json").read_text())["plan"]
    assert {row["scale"] for row in rows if row["tensor"] == "r"} == {0.25}


def test_resume_loads_finished_stages_and_runs_the_rest(run: Run, work: Path) -> None:
    assert run(*BASE)[0] == 0
    stats = work / "run/stages/stats.npz"
    before, model = stats.stat().st_mtime_ns, (work / "run/model.onnx").read_bytes()
    (work / "run/result.json").unlink()
    (work / "run/stages/build.key").unlink()
    assert run(*BASE, "--resume")[0] == 0
    assert stats.stat().st_mtime_ns == before
    assert (work / "run/model.onnx").read_bytes() == model
    assert (work / "run/result.json").exists()
    code, _, err = run(*BASE, "--resume", "--range", "mse")
    assert (code, stats.stat().st_mtime_ns) == (2, before)
    assert "started with another --range (was minmax, now mse)" in err


def test_a_failed_verdict_is_exit_code_1(run: Run, work: Path) -> None:
    (work / "strict.toml").write_text("[thresholds]\nnumerics_drop_db = -500\n")
    code, out, _ = run(*BASE, "--config", "strict.toml")
    assert code == 1
    assert "target and simulation disagree" in out
    verdicts = json.loads((work / "run/result.json").read_text())["verdicts"]
    assert verdicts["numerics"]["status"] == "fail"
    assert "- -500 dB" in verdicts["numerics"]["passes_when"]["float outputs"]


def test_a_config_file_sets_the_same_options(run: Run, work: Path) -> None:
    (work / "run.toml").write_text('target = "ort-cpu"\nprecision = "w8a16"\nkeep = ["scores=fp32"]\n')
    assert run("fit", "model.onnx", "--calib", "calib.npz", "-o", "run", "--config", "run.toml")[0] == 0
    assert json.loads((work / "run/result.json").read_text())["precision"] == "w8a16"


def test_range_repair_is_an_option_and_a_key_of_the_config_file(run: Run, work: Path) -> None:
    (work / "run.toml").write_text("range_repair = false\n")
    for arguments in (("--no-range-repair",), ("--config", "run.toml")):
        assert run(*BASE, *arguments, "--force")[0] == 0
        assert json.loads((work / "run/result.json").read_text())["options"]["range_repair"] is False
    code, _, err = run(*BASE, "--resume")
    assert (code, "started with another --range-repair (was False, now True)" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--precision", "w3a3"), "unknown precision 'w3a3' for target ort-cpu"),
        (("--target", "abacus"), "unknown target 'abacus'"),
        (("--target", "ort-cpu:fast"), "unknown target suffix 'fast': ort-cpu has none"),
        (("--option", "vtcm=8"), "no option 'vtcm'"),
        (("--option", "vtcm"), "expected key=value"),
        (("--range", "guess"), "unknown range method 'guess'"),
        (("--rounding", "up"), "unknown rounding 'up'; expected one of auto, nearest, scale-search, second-order"),
        (("--io", "maybe"), "unknown io 'maybe'"),
        (("--keep", "conv"), "expected GLOB=PRECISION"),
        (("--keep", "conv=fp12"), "unknown precision 'fp12'"),
        (("--keep", "nobody=fp32"), "no tensor or node name matches 'nobody'"),
        (("--require", "magic"), "--require magic: unknown verdict; expected one of normalized"),
        (("--shape", "image"), "expected name=1,3,224,224"),
        (("--shape", "image=1,3,9,9"), "image"),
        (("--shape", "picture=1,3,8,8"), "no input 'picture'"),
        (("--metric", "my_metric:top1"), "a metric requires held-out data: add --eval DATA"),
        (("--eval", "eval.npz", "--metric", "my_metric:none"), "has no function 'none'"),
        (("--eval", "eval.npz", "--metric", "my_metric:bad"), "must return a dict of named values"),
        (("--eval", "same.npz", "--metric", "my_metric:top1"), "sample 0 is also in the calibration data"),
        (("--calib", "none.npz"), "none.npz"),
        (("--calib", "wrong_name.npz"), "array 'picture' is not an input"),
        (("--calib", "wrong_shape.npz"), "'image' has shape (4, 3, 9, 9)"),
        (("--calib", "wrong_type.npz"), "'image' is int32, the model requires float32"),
        (("--calib", "nan.npz"), "'image' of sample 2 contains NaN"),
        (("--calib", "empty.npz"), "empty.npz: no samples"),
        (("--plan", "model.onnx"), "model.onnx cannot be read as a plan"),
        (("--config", "bad.toml"), "unknown option 'precison'"),
        (("--config", "worse.toml"), "worse.toml cannot be read as a TOML configuration"),
        (("--config", "strict.toml"), "unknown threshold 'normal_db'"),
        (("--size", "8"), "expected height,width"),
        (("--size", "inf,3"), "--size inf,3: expected height,width with whole numbers"),
        (("--size", "nan,3"), "--size nan,3: expected height,width with whole numbers"),
        (("--size", "8,²"), "--size 8,²: expected height,width with whole numbers"),
        (("--shape", "image=1,²"), "--shape image=1,²: expected name=1,3,224,224"),
        (("--shape", f"image=1,{'9' * 5000}"), "expected name=1,3,224,224 with whole numbers from 1 to 2147483647"),
        (("--calib", "random:²"), "random:²: expected random:N with N samples"),
        (
            ("--target", "xnnpack", "--option", "memory_limit_mb=²"),
            "--option memory_limit_mb=²: expected a whole number",
        ),
        (("--target", "xnnpack", "--option", "time_limit_s=1e300"), "--option time_limit_s=1e300: expected a number"),
        (("--target", "qnn-htp:sm8550", "--emulate", "9" * 20), "expected a whole number from 1 to 2147483647"),
        (("--mean", "a,b"), "expected numbers"),
        (("--std", "0"), "--std must not be zero"),
        (("--no-such-option",), "No such option"),
        (("--emulate", "3"), "--emulate is not available for ort-cpu, which has no emulator"),
        (("--option", "a=1", "--option", "a=2"), "--option a is given twice"),
        (("--calib", ":f"), "expected module:function"),
        (("--calib", "my_metric:eof"), "my_metric:eof: EOFError: x"),
        (("--eval", "eval.npz", "--metric", "my_metric:boom"), "metric my_metric:boom: KeyError: 'label'"),
        (("--eval", "calib.npz"), "sample 0 is also in the calibration data"),
        (("--eval", "late.npz", "--metric", "my_metric:blind"), "sample 24 is also in the calibration data"),
        (("--target", "tensorrt:sm80", "--precision", "fp8"), "fp8 is not available on tensorrt:sm80: sm80 does not"),
        (("--target", "qnn-htp:v68", "--precision", "fp16"), "fp16 is not available on qnn-htp:v68: HTP v68 does not"),
        (("--plan", "p.json", "--precision", "w8a8"), "--precision cannot be combined with --plan"),
        (("--plan", "p.json", "--keep", "f=fp32"), "--keep cannot be combined with --plan"),
        (("--plan", "p.json", "--io", "quantized"), "--io cannot be combined with --plan"),
        (("--plan", "p.json", "--operand-bits", "8"), "--operand-bits cannot be combined with --plan"),
        (("--config", "toml:range = 3"), "option range = 3: Expected `str`"),
        (("--config", "toml:shape = 3"), "option shape = 3"),
        (("--config", 'toml:keep = "f=fp32"'), "option keep = 'f=fp32'"),
        (("--config", 'toml:std = "a"'), "option std = 'a'"),
        (("--config", "toml:size = [8, 8, 8]"), "option size = [8, 8, 8]"),
        (("--config", "toml:option = {x = 1}"), "option option = {'x': 1}"),
        (("--config", "toml:thresholds = 3"), "option thresholds = 3"),
        (("--config", 'toml:thresholds.normalized_db = "x"'), "normalized_db"),
        (
            ("--config", "toml:thresholds.normalized_db = nan"),
            "threshold normalized_db: expected a finite number, not nan",
        ),
        (("--config", "toml:thresholds.normalized_samples = 0"), "threshold normalized_samples: expected a whole"),
        (("--config", f"toml:thresholds.normalized_samples = {'9' * 20}"), "normalized_samples: expected a whole"),
    ],
)
def test_bad_input_is_one_sentence_exit_2_and_nothing_written(
    run: Run, work: Path, arguments: tuple[str, ...], message: str
) -> None:
    with np.load(work / "calib.npz") as data:
        image = data["image"]
    np.savez(work / "same.npz", image=image[:4], labels=np.zeros(4, np.int64))
    np.savez(work / "wrong_name.npz", picture=image)
    np.savez(work / "wrong_shape.npz", image=np.zeros((4, 3, 9, 9), np.float32))
    np.savez(work / "wrong_type.npz", image=image.astype(np.int32))
    np.savez(work / "empty.npz", image=image[:0])
    bad = image.copy()
    bad[2, 0, 0, 0] = np.nan
    np.savez(work / "nan.npz", image=bad)
    (work / "bad.toml").write_text('precison = "w8a8"\n')
    (work / "worse.toml").write_text("precision = \n")
    (work / "strict.toml").write_text("[thresholds]\nnormal_db = 5\n")
    with np.load(work / "eval.npz") as data:
        np.savez(work / "late.npz", image=np.concatenate([data["image"], image[:1]]))
    (work / "case.toml").write_text(arguments[-1].removeprefix("toml:"))
    arguments = tuple("case.toml" if text.startswith("toml:") else text for text in arguments)
    code, out, err = run(*BASE, *arguments)
    assert code == 2, (out, err)
    assert message in err
    assert "Traceback" not in err
    assert not (work / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "bad.onnx"),
        (b"this is no model", "bad.onnx"),
        ("truncated", "bad.onnx"),
        (None, "bad.onnx"),
    ],
)
def test_a_bad_model_file_is_named(run: Run, work: Path, content: bytes | str | None, message: str) -> None:
    if content == "truncated":
        content = (work / "model.onnx").read_bytes()[:500]
    if isinstance(content, bytes):
        (work / "bad.onnx").write_bytes(content)
    code, _, err = run("fit", "bad.onnx", *BASE[2:])
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (work / "run").exists()


def test_a_shape_that_is_too_large_is_refused(run: Run, work: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[N,M] x) => (float[N,M] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), work / "model.onnx")
    code, _, err = run(*BASE, "--calib", "random", "--shape", "x=2147483647,8")
    assert (code, err) == (2, "dovetail: --shape x: 2147483647,8 has more than 2147483647 elements\n")


@pytest.mark.parametrize("command", ["fit", "check"])
def test_types_that_contradict_each_other_are_named(run: Run, work: Path, command: str) -> None:
    model = onnx.load(work / "model.onnx")
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight).astype(np.float64), "w"))
    onnx.save(model, work / "model.onnx")
    code, _, err = run(command, *(BASE[1:] if command == "fit" else BASE[1:6]))
    message = "node 'MatMul/m' (MatMul) requires inputs of one type, but 'v' is float and 'w' is double"
    assert (code, err) == (2, f"dovetail: {message}; export the model in one type, or add a Cast\n")
    assert not (work / "run").exists()


def test_an_output_folder_with_other_content_is_not_touched(run: Run, work: Path) -> None:
    (work / "run").mkdir()
    (work / "run/precious.txt").write_text("mine")
    for arguments in ((), ("--force",), ("--resume",)):
        code, _, err = run(*BASE, *arguments)
        assert code == 2
        assert "is not empty and not a Dovetail run directory; choose another --output" in err
    assert (work / "run/precious.txt").read_text() == "mine"
    (work / "file").write_text("mine")
    assert "is a file" in run(*BASE[:-1], "file")[2]


def test_replacing_an_earlier_run_requires_force(run: Run, work: Path) -> None:
    assert run(*BASE)[0] == 0
    code, _, err = run(*BASE)
    assert code == 2
    assert "already contains a run; add --force to replace it or --resume to continue it" in err
    assert run(*BASE, "--force")[0] == 0


def test_an_unwritable_output_is_named(run: Run, work: Path) -> None:
    (work / "file").write_text("mine")
    code, _, err = run(*BASE[:-1], "file/run")
    assert code == 2
    assert "file/run" in err


def test_missing_calibration_says_what_to_do(run: Run, work: Path) -> None:
    code, _, err = run("fit", "model.onnx", "--target", "ort-cpu", "-o", "run")
    assert code == 2
    assert "no calibration data: add --calib DATA, or --calib random to calibrate on random noise" in err
    code, _, err = run("fit", "model.onnx", "--calib", "random", "-o", "run")
    assert code == 2
    assert "no target: add --target, for example --target ort-cpu" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--precision", "w4a16-lpbq", "--block-size", "1"), "--block-size 1: expected a whole number from 2"),
        (("--precision", "w4a16-lpbq", "--block-size", "1.5"), "'1.5' is not a valid integer"),
        (("--precision", "w8a16", "--block-size", "16"), "--block-size 16: w8a16 has no block-quantized weights"),
        (("--precision", "w4a16-lpbq", "--block-size", "24", "--target", "qnn-htp:sm8550"), "--block-size 24: HTP"),
        (("--precision", "w4a16-bq", "--block-size", "12", "--target", "qnn-htp:sm8550"), "multiples of 8"),
    ],
)
def test_a_block_size_that_is_not_possible_is_refused(
    arguments: tuple[str, ...], message: str, run: Run, work: Path
) -> None:
    code, _, err = run(*BASE, *arguments)
    assert code == 2
    assert message in " ".join(err.split())
    assert not (work / "run").exists()


def test_block_quantized_weights_and_what_is_not_in_blocks(run: Run, work: Path) -> None:
    code, _, err = run(*BASE, "--precision", "w4a16-lpbq", "--block-size", "16", "--min-sqnr", "5")
    assert (code, err) == (0, "")
    rows = json.loads((work / "run/plan.json").read_text())["rows"]
    (weight,) = [row for row in rows if row["granularity"] == "expanded_block"]
    assert (weight["block_size"], weight["axis"], weight["dtype"]) == (16, 0, "int4")
    assert np.shape(weight["scale"]["integers"]) == (9, 5)
    (kernel,) = [row for row in rows if "only convolutions of 1 x 1" in row["detail"]]
    assert kernel["dtype"] == "int8"
