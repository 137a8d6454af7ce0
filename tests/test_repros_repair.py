"""A model whose Relus were folded into ranges, repaired: compared with the model as given, with and without float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import repair_verdict, repairs
from dovetail.cli.main import main
from dovetail.errors import BackendError, InputError
from dovetail.finding import Status
from dovetail.model.session import Mode, open_session, run_session
from dovetail.numerics.metrics import sqnr_db
from dovetail.pass_record import PassRecord

REPROS = Path(__file__).parent / "repros"
FOLDED = REPROS / "ort_qdq_relu_folded.onnx"
FLOAT = REPROS / "ort_qdq_relu_folded_float.onnx"
CALIBRATION = REPROS / "ort_qdq_relu_folded_calib.npz"
TARGETS = ["ort-cpu", pytest.param("tensorrt:sm89", id="tensorrt")]


@pytest.fixture(autouse=True)
def _needs_backend(request: pytest.FixtureRequest) -> None:
    target = request.getfixturevalue("target") if "target" in request.fixturenames else ""
    if target.startswith("tensorrt"):
        pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")


def outputs(path: Path) -> np.ndarray:
    session = open_session(path, Mode.EXACT)
    with np.load(CALIBRATION) as arrays:
        (images,) = (arrays[name] for name in arrays.files)
    return np.concatenate([run_session(session, {"x": image.reshape(1, 3, 16, 16)})["y"] for image in images])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("float_model", [None, FLOAT], ids=["alone", "float"])
def test_folded_relus_are_restored(tmp_path: Path, target: str, float_model: Path | None) -> None:
    result = dovetail.repair(
        FOLDED, target=target, calibration=CALIBRATION, output=tmp_path / "run", float_model=float_model
    )
    assert result.verdicts["repaired"].status is Status.PASS
    restored = [record for record in result.passes if record.name == "restore_activations"]
    assert [[site.where for site in record.changed] for record in restored] == [["r0", "r1"]]
    expected = outputs(FLOAT)
    as_given, repaired = (sqnr_db(expected, outputs(path)) for path in (FOLDED, tmp_path / "run/model.onnx"))
    assert as_given > 37
    assert repaired > as_given - 1


@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize("float_model", [None, FLOAT], ids=["alone", "float"])
def test_without_them_the_verdict_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, float_model: Path | None
) -> None:
    """Without the pass the model loses its Relus, and nothing but this verdict sees it."""
    monkeypatch.setattr(repairs, "restore_activations", lambda model: PassRecord("restore_activations"))
    result = dovetail.repair(
        FOLDED, target=target, calibration=CALIBRATION, output=tmp_path / "run", float_model=float_model
    )
    verdict = result.verdicts["repaired"]
    assert verdict.status is Status.FAIL
    assert verdict.numbers["repaired: y"] < 1
    assert verdict.numbers["types alone: y" if float_model is None else "as given: y"] > 35
    assert all(v.status is not Status.FAIL for name, v in result.verdicts.items() if name != "repaired")


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["repair", str(FOLDED), "--target", "ort-cpu", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(str(ended.value.code)), " ".join((captured.out + captured.err).replace("│", " ").split())


def test_the_command_prints_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run_cli(capsys, "--calib", CALIBRATION, "-o", tmp_path / "a")
    assert code == 0
    assert "the change of types alone" in printed
    code, printed = run_cli(capsys, "--calib", CALIBRATION, "--float", FLOAT, "-o", tmp_path / "b")
    assert code == 0
    assert "not worse than the model as given" in printed
    assert "rewrite: restore_activations: applied at 2 sites, declined at 0" in printed


@pytest.mark.parametrize("data", [(), ("--calib", "random")], ids=["none", "random"])
def test_without_data_it_is_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: tuple[str, ...]
) -> None:
    run_cli(capsys, *data, "-o", tmp_path / "run")
    verdict = dovetail.load_result(tmp_path / "run/result.json").verdicts["repaired"]
    assert verdict.status is Status.NOT_CHECKED
    assert "pass --calib DATA" in verdict.reason


def renamed(path: Path, tmp_path: Path, *, output: str = "y", rows: int = 1) -> Path:
    proto = onnx.load(path)
    proto.graph.node[-1].output[0] = proto.graph.output[0].name = output
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 16 * rows
    other = tmp_path / "other.onnx"
    onnx.save(proto, other)
    return other


def test_a_float_model_that_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is one sentence and exit code 2, before anything is written."""
    run = tmp_path / "run"
    cases = {
        FOLDED: "is quantized: pass the float model that it was made from",
        tmp_path / "missing.onnx": "missing.onnx",
        renamed(FLOAT, tmp_path, output="z"): "the float model has no output 'y'",
    }
    for path, message in cases.items():
        code, printed = run_cli(capsys, "--calib", CALIBRATION, "--float", path, "-o", run)
        assert (code, message in printed, run.exists()) == (2, True, False), printed
    larger = renamed(FLOAT, tmp_path, rows=2)
    code, printed = run_cli(capsys, "--calib", CALIBRATION, "--float", larger, "-o", run)
    assert code == 2
    assert "input 'x' is of shape (1, 3, 32, 16), in the quantized model of shape (1, 3, 16, 16)" in printed


def test_a_float_model_with_other_weights_is_not_checked(tmp_path: Path) -> None:
    """Both models would be equally far from it, which proves nothing."""
    proto = onnx.load(FLOAT)
    for tensor in proto.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(-values[::-1]), tensor.name))
    result = dovetail.repair(
        FOLDED, target="ort-cpu", calibration=CALIBRATION, output=tmp_path / "run", float_model=proto
    )
    assert result.verdicts["repaired"].status is Status.NOT_CHECKED
    assert "it was quantized from another model" in result.verdicts["repaired"].reason


@pytest.mark.parametrize("target", TARGETS[1:])
def test_a_precision_that_the_target_does_not_have_is_refused(tmp_path: Path, target: str) -> None:
    path, run = REPROS / "dig_qnn_a16w8.onnx", tmp_path / "run"
    data = {"images": np.zeros((2, 1, 8, 8), np.float32)}
    reason = "is quantized in w8a16, which tensorrt:sm89 does not support: quantize the float model for it, or convert"
    with pytest.raises(InputError, match=reason):
        dovetail.repair(path, target=target, calibration=data, output=run)
    assert not run.exists()


def test_a_model_that_cannot_run_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise BackendError("ONNX Runtime cannot load exact.onnx: no kernel")

    monkeypatch.setattr(repair_verdict, "SessionRun", fails)
    result = dovetail.repair(FOLDED, target="ort-cpu", calibration=CALIBRATION, output=tmp_path / "run")
    assert result.verdicts["repaired"].status is Status.NOT_CHECKED
    assert "no kernel" in result.verdicts["repaired"].reason


def test_a_clip_before_a_float8_quantization_runs_literally(tmp_path: Path) -> None:
    """ONNX Runtime 1.31.1 fuses a Clip into QuantizeLinear, and fails for float8."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[4] x) => (float[4] y)
    <float low = {0}, float high = {6}, float s = {1}>
    { c = Clip(x, low, high) q = QuantizeLinear(c, s, z) y = DequantizeLinear(q, s, z) }"""
    proto = onnx.parser.parse_model(text)
    zero = onnx.helper.make_tensor("z", onnx.TensorProto.FLOAT8E4M3FN, (), [0.0])
    proto.graph.initializer.append(zero)
    session = open_session(proto.SerializeToString(), Mode.EXACT)
    assert list(run_session(session, {"x": np.array([-1, 2, 6, 9], np.float32)})["y"]) == [0, 2, 6, 6]


def test_fit_has_no_such_verdict(tmp_path: Path) -> None:
    result = dovetail.fit(FLOAT, target="ort-cpu", calibration=CALIBRATION, output=tmp_path / "run")
    assert "repaired" not in result.verdicts
