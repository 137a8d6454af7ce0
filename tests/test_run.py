"""What a run guarantees: it stops if the graph is no longer the model, can be resumed, and changes no input."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import clock, float_stages, pipeline, shipping, zoo
from dovetail.config import FitOptions
from dovetail.errors import InputError
from dovetail.job import prepare


@pytest.fixture
def digits(tmp_path: Path) -> dict[str, object]:
    shipped = zoo.load("vit_digits")
    calibration = {name: array[:8] for name, array in shipped.calib().items()}
    return {"model": shipped.model_path, "target": "ort-cpu", "calibration": calibration, "output": tmp_path / "run"}


def test_a_run_stops_if_the_graph_is_no_longer_the_model(digits: dict[str, object]) -> None:
    result = dovetail.fit(**digits, thresholds={"normalized_db": 199.0})
    assert result.failed == ("normalized",)
    assert result.artifacts == ()
    assert not (Path(str(digits["output"])) / "model.onnx").exists()


def test_an_interrupted_run_is_resumed(digits: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = dovetail.fit(**{**digits, "output": Path(str(digits["output"])).with_name("whole")})

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    run = Path(str(digits["output"]))
    with monkeypatch.context() as patch:
        patch.setattr(shipping, "run_trials", interrupt)
        with pytest.raises(KeyboardInterrupt):
            dovetail.fit(**digits)
    assert not (run / "result.json").exists()
    with pytest.raises(InputError, match="--resume"):
        dovetail.fit(**digits)
    with monkeypatch.context() as patch:
        patch.setattr(float_stages, "normalize", interrupt)  # it must not be called again
        resumed = dovetail.fit(**digits, resume=True)
    assert [a.sha256 for a in resumed.artifacts if a.name == "model"] == [
        a.sha256 for a in whole.artifacts if a.name == "model"
    ]


def test_held_out_data_and_float_are_the_same_in_every_precision(digits: dict[str, object], tmp_path: Path) -> None:
    shipped = zoo.load("vit_digits")
    held_out = {key: array[:8] for key, array in {**shipped.eval(), **shipped.targets()}.items()}
    options = {**digits, "evaluation": held_out, "metric": shipped.metric}
    w8a8, w8a16 = (
        dovetail.fit(**{**options, "precision": precision, "output": tmp_path / precision}).metrics.accuracy
        for precision in ("w8a8", "w8a16")
    )
    assert w8a8 is not None
    assert w8a16 is not None
    assert w8a8.data == w8a16.data
    assert w8a8.figures["float"] == w8a16.figures["float"]


def test_weights_in_external_data(digits: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "external" / "model.onnx"
    path.parent.mkdir()
    onnx.save(
        onnx.load(str(digits["model"])), path, save_as_external_data=True, location="weights.bin", size_threshold=1024
    )
    inline = dovetail.fit(**digits)
    external = dovetail.fit(**{**digits, "model": path, "output": tmp_path / "other"})
    assert external.metrics.size_bytes["float"] > 500_000
    assert [a.sha256 for a in external.artifacts if a.name == "model"] == [
        a.sha256 for a in inline.artifacts if a.name == "model"
    ]


def test_a_model_in_memory_and_a_function_for_data(digits: dict[str, object]) -> None:
    model = onnx.load(str(digits["model"]))
    before = model.SerializeToString()
    arrays = digits["calibration"]

    def batches():  # type: ignore[no-untyped-def]
        for image in arrays["images"]:  # type: ignore[index]
            yield {"images": image[None]}

    result = dovetail.fit(**{**digits, "model": model, "calibration": batches})
    assert not result.failed
    assert model.SerializeToString() == before


def test_double_precision_models_are_refused_by_name(digits: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "double.onnx"
    text = '<ir_version: 10, opset_import: ["": 21]> g (double[1,3] x) => (double[1,3] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(InputError, match="'y' is double; provide the float32 model"):
        dovetail.fit(**{**digits, "model": path, "calibration": {"x": np.zeros((4, 3), np.float16)}})
    assert not Path(str(digits["output"])).exists()


def test_a_model_that_only_moves_data(digits: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "move.onnx"
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2,3] x) => (float[3,2] y) { y = Transpose(x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    data = {"x": np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)}
    assert not dovetail.fit(**{**digits, "model": path, "calibration": data}).failed


def test_shapes_that_depend_on_data_are_refused_by_name(digits: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[4] x) => (float[n] y) { i = NonZero(x) j = Squeeze(i) s = Gather(x, j) y = Relu(s) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(InputError, match="has no static shape"):
        dovetail.fit(**{**digits, "model": path, "calibration": {"x": np.ones((4, 4), np.float32)}})


def test_weights_too_large_for_a_protobuf_become_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.model import write

    monkeypatch.setattr(write, "_INLINE_LIMIT_BYTES", 100_000)
    shipped = zoo.load("vit_digits")
    calibration = {name: array[:4] for name, array in shipped.calib().items()}
    result = dovetail.fit(shipped.model_path, target="ort-cpu", calibration=calibration, output=tmp_path / "run")
    assert {str(verdict.status) for verdict in result.verdicts.values()} == {"pass"}
    assert [a.path for a in result.artifacts][:2] == ["model.onnx", "model.onnx.data"]
    both = sum(artifact.bytes for artifact in result.artifacts[:2])
    assert result.metrics.size_bytes == {"float": shipped.model_path.stat().st_size, "model.onnx": both}


SMALL = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,4] x) => (float[1,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { h = Relu(x)  y = MatMul(h, w) }"""
ROWS = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def small(folder: Path, text: str = SMALL) -> dict[str, object]:
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    np.savez(folder / "calib.npz", x=ROWS)
    return {
        "model": folder / "model.onnx",
        "target": "ort-cpu",
        "calibration": folder / "calib.npz",
        "output": folder / "run",
    }


def test_images_with_another_normalization_are_other_samples(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the package pillow")
    (tmp_path / "images").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (4, 4, 3), dtype=np.uint8)
        image.fromarray(pixels).save(tmp_path / f"images/{number}.png")
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,3,4,4] x) => (float[1,3,4,4] y) { y = Relu(x) }'
    arguments = {**small(tmp_path, text), "calibration": tmp_path / "images"}
    plain = dovetail.fit(**arguments)
    with pytest.raises(InputError, match=r"another --mean \(was 0.0, now 0.5\), --std \(was 1.0, now 0.01\); set what"):
        dovetail.fit(**arguments, mean=(0.5,), std=(0.01,), resume=True)
    shifted = dovetail.fit(**arguments, mean=(0.5,), std=(0.01,), force=True)
    assert shifted.calibration != plain.calibration
    assert shifted.plan != plain.plan


def test_changed_external_data_makes_another_model(tmp_path: Path) -> None:
    arguments = small(tmp_path)
    results = []
    for scale in (1, 3):
        model = onnx.parser.parse_model(SMALL)
        weight = onnx.numpy_helper.to_array(model.graph.initializer[0]) * np.float32(scale)
        model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
        (tmp_path / "w.bin").unlink(missing_ok=True)
        onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
        if results:
            with pytest.raises(InputError, match=r"started with another model \(was SHA-256 .*; set what"):
                dovetail.fit(**arguments, resume=True)
        results.append(dovetail.fit(**arguments, force=bool(results)))
    first, second = results
    assert first.model_sha256 != second.model_sha256
    assert not second.failed
    scales = [next(row.scale for row in result.plan if row.edge) for result in results]
    np.testing.assert_allclose(np.asarray(scales[1]), 3 * np.asarray(scales[0]), rtol=1e-6)


def test_values_that_are_not_finite_are_named(tmp_path: Path) -> None:
    activation = SMALL.replace("h = Relu(x)", "c = Relu(x)  h = Log(c)")
    with pytest.raises(InputError, match=r"activation 'h' \(output of Log 'Log/h'\) contains infinity on sample 0"):
        dovetail.fit(**small(tmp_path, activation))
    with pytest.raises(InputError, match=r"activation 'h' \(output of Sqrt 'Sqrt/h'\) contains NaN on sample 0"):
        dovetail.fit(**small(tmp_path, activation.replace("c = Relu(x)", "c = Neg(x)").replace("Log(c)", "Sqrt(c)")))
    arguments = small(tmp_path)
    model = onnx.load(str(arguments["model"]))
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[2, 1] = np.nan
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, str(arguments["model"]))
    with pytest.raises(InputError, match="weight 'w' holds NaN"):
        dovetail.fit(**arguments)
    assert not (tmp_path / "run").exists()


def test_a_quantized_model_is_refused(tmp_path: Path) -> None:
    arguments = small(tmp_path)
    dovetail.fit(**arguments)
    with pytest.raises(InputError, match=r"model\.onnx is already quantized: `dovetail fit` requires the float model"):
        dovetail.fit(**{**arguments, "model": tmp_path / "run/model.onnx", "output": tmp_path / "again"})


def test_outputs_whose_size_depends_on_the_data_are_refused_before_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,4] x) => (float[1,4] y, int64[2,n] i) '
    text += "{ y = Relu(x)  i = NonZero(y) }"
    monkeypatch.delattr(float_stages, "collect")
    with pytest.raises(InputError, match="tensor 'i' has no static shape: its shape depends on the data"):
        dovetail.fit(**small(tmp_path, text))


def test_a_plan_decides_the_precision(tmp_path: Path) -> None:
    arguments = small(tmp_path)
    dovetail.fit(**arguments, precision="w8a16", io="quantized")
    with_plan = {**arguments, "output": tmp_path / "again", "plan": tmp_path / "run/plan.json"}
    assert dovetail.fit(**with_plan).precision == "w8a16"
    for option in (
        {"precision": "w8a8"},
        {"keep": ("h=fp32",)},
        {"io": "float"},
        {"range": "mse"},
        {"rounding": "nearest"},
    ):
        with pytest.raises(InputError, match=f"--{next(iter(option))} cannot be combined with --plan"):
            dovetail.fit(**with_plan, **option, force=True)


def test_one_calibration_row_in_a_held_out_batch_is_refused(tmp_path: Path) -> None:
    arguments = {**small(tmp_path, SMALL.replace("[1,", "[2,")), "calibration": {"x": ROWS[:6]}}
    held_out = {"x": np.concatenate([ROWS[6:], ROWS[5:6], ROWS[6:7] + 1])}
    with pytest.raises(InputError, match="--eval: sample 2 is also in the calibration data"):
        dovetail.fit(**arguments, evaluation=held_out)
    assert dovetail.fit(**arguments, evaluation={"x": ROWS[6:]}).calibration.samples == 6


def test_an_invalid_plan_writes_nothing(tmp_path: Path) -> None:
    arguments = small(tmp_path)
    dovetail.fit(**arguments)
    edited = (tmp_path / "run/plan.json").read_text().replace(':1",', ':7",')
    (tmp_path / "edited.json").write_text(edited)
    with pytest.raises(InputError, match=r"the plan has a row for edge '.*:7', but the graph has no float input there"):
        dovetail.fit(**{**arguments, "output": tmp_path / "again"}, plan=tmp_path / "edited.json")
    assert not (tmp_path / "again").exists()


def test_only_class_scores_have_a_top_class(digits: dict[str, object], tmp_path: Path) -> None:
    assert set(dovetail.fit(**digits).metrics.top1_agreement.target_vs_float or {}) == {"logits"}
    plain = dovetail.fit(**{**small(tmp_path), "output": tmp_path / "plain"}).metrics
    assert plain.top1_agreement.simulation_vs_float == plain.top1_agreement.target_vs_float == {}
    assert plain.sqnr_db.target_vs_float is not None


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def test_the_timings_cover_the_cpu_time_of_a_run(digits: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of a large model takes long, which is imitated here."""
    compare = pipeline.check_normalized

    def slow(*arguments: object) -> object:
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
        return compare(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "check_normalized", slow)
    calibration, path = digits["calibration"], Path(str(digits["model"]))
    job = prepare(path, FitOptions(target="ort-cpu"), calibration=calibration)  # type: ignore[arg-type]
    before = cpu_seconds()
    timings_s = pipeline.fit(job, Path(str(digits["output"]))).timings_s
    elapsed_s = cpu_seconds() - before
    assert sum(timings_s.values()) == pytest.approx(elapsed_s, rel=0.1)
    assert timings_s["check_normalized"] >= 0.49


def test_the_time_of_a_stage_that_runs_twice_is_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, now = clock.Clock(), iter([1.0, 3.0, 10.0, 12.0, 14.0, 15.0])
    monkeypatch.setattr(clock, "cpu_seconds", lambda: next(now))
    with counted.stage("plan"):
        pass
    with counted.stage("plan"), counted.stage("inside"):
        pass
    assert counted.timings_s == {"plan": 2.0 + 2.0 + 1.0, "inside": 2.0}, "a nested stage is counted separately"
