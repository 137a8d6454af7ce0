"""Models that are changed when they are read: what cannot be run as it is, and half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import dovetail
from dovetail import float_sessions, zoo
from dovetail.checking import check_file
from dovetail.errors import BackendError
from dovetail.finding import Status
from dovetail.float_sessions import require_no_crash
from dovetail.model.read import read
from dovetail.model.session import Mode, open_session
from dovetail.passes.as_float32 import as_float32, has_float16
from dovetail.targets import open_target
from dovetail.targets.child import ChildResult, run_child
from dovetail.targets.tool_call import CallCount, Task, tool_session
from tests.equality import model_from, normal, run, sqnr_db

CRASHES = Path(__file__).parent / "repros" / "ln_nobias_empty.onnx"
READ = "the reference is the model as it was read, not the unmodified file: "


def test_graph_on_which_onnx_runtime_crashes_is_one_sentence() -> None:
    model = read(CRASHES)
    match = "the float model 'ln_nobias_empty.onnx' cannot be run: ONNX Runtime was killed by signal 11"
    with pytest.raises(BackendError, match=match) as caught:
        require_no_crash((CRASHES,), model)
    assert "\n" not in str(caught.value)
    require_no_crash((model,), model)


@pytest.mark.usefixtures("empty_cache")
def test_a_model_that_did_not_crash_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a model that crashed, nor another one."""
    tried: list[str] = []

    def counted(function: str, arguments: dict[str, Any], **options: Any) -> ChildResult:
        tried.append(function)
        return run_child(function, arguments, **options)

    monkeypatch.setattr(float_sessions, "run_child", counted)
    good, other = (model_from(f"g (float[2,3] x) => (float[2,3] y) {{ y = {op}(x) }}") for op in ("Relu", "Neg"))
    for model, count in ((good, 1), (good, 1), (other, 2), (good, 2)):
        require_no_crash((model,), model)
        assert len(tried) == count
    for count in (3, 4):
        with pytest.raises(BackendError):
            require_no_crash((CRASHES,), read(CRASHES))
        assert len(tried) == count
    with tool_session(use_cache=False) as session:
        require_no_crash((good,), good)
    assert len(tried) == 5
    assert session.counts[Task.COMPILE] == CallCount(0, 0)


def test_the_model_that_crashes_is_named() -> None:
    good = model_from("g (float[1,4,8] x) => (float[1,4,8] y) { y = Relu(x) }")
    for models in ((CRASHES, good), (good, CRASHES)):
        with pytest.raises(BackendError, match=r"the float model 'ln_nobias_empty\.onnx' cannot be run"):
            require_no_crash(models, good)


def test_error_that_onnx_runtime_reports_is_left_to_the_first_use(tmp_path: Path) -> None:
    model = model_from("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    wrong = '<ir_version: 10, opset_import: ["": 21]> g (float[2,3] x) => (int64[2,3] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(wrong), tmp_path / "m.onnx")
    with pytest.raises(BackendError, match="ONNX Runtime cannot load"):
        open_session(tmp_path / "m.onnx", Mode.FLOAT)
    require_no_crash((tmp_path / "m.onnx", model), model)


def test_trailing_empty_inputs_are_dropped(tmp_path: Path) -> None:
    assert [len(node.inputs) for node in read(CRASHES).graph] == [2, 2]
    assert check_file(CRASHES, open_target("ort-cpu", {})) == ()
    result = dovetail.fit(CRASHES, target="ort-cpu", calibration="random", output=tmp_path / "run")
    assert result.verdicts["normalized"].status is Status.PASS
    note = f"{READ}empty inputs at the end of the inputs of 'ln' (LayerNormalization) were dropped"
    assert note in result.notes
    assert (tmp_path / "run/stages/read.onnx").exists()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_model_is_fitted_in_float32(dtype: str, tmp_path: Path) -> None:
    shipped = zoo.load("vit_digits")
    model = ir.load(shipped.model_path)
    _in_half(model, ir.DataType[dtype.upper()])
    ir.save(model, tmp_path / "half.onnx")
    images = shipped.calib()["images"][:4]
    result = dovetail.fit(
        tmp_path / "half.onnx", target="ort-cpu", calibration={"images": images}, output=tmp_path / "run"
    )
    assert result.verdicts["normalized"].status is Status.PASS
    assert any(note.startswith(READ) and "are read as float32" in note for note in result.notes)
    found = run(ir.load(tmp_path / "run/stages/read.onnx"), {"images": images[:1]})
    expected = run(ir.load(shipped.model_path), {"images": images[:1]})
    for name, array in expected.items():
        assert sqnr_db(array, found[name]) >= 25  # the weights were rounded to half precision


def test_float32_model_has_no_changes_and_no_copy(tmp_path: Path) -> None:
    shipped = zoo.load("vit_digits")
    images = shipped.calib()["images"][:2]
    result = dovetail.fit(shipped.model_path, target="ort-cpu", calibration={"images": images}, output=tmp_path / "run")
    assert not any(note.startswith(READ) for note in result.notes)
    assert not (tmp_path / "run/stages/read.onnx").exists()


def test_check_reads_half_precision_as_float32(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = '<ir_version: 10, opset_import: ["": 21]> g (float16[1,4] x) => (float16[1,4] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    assert check_file(path, open_target("ort-cpu", {}), calibration="random") == ()


def test_bfloat16_constants_keep_their_values() -> None:
    weight = normal(8, 6).astype(ml_dtypes.bfloat16)
    text = "g (float[4,8] x) => (float[4,6] y) { c = Cast<to = 1>(w) y = MatMul(x, c) }"
    model = model_from(text, w=weight)
    assert has_float16(model)
    record = as_float32(model)
    assert not has_float16(model)
    assert [site.what for site in record.changed] == ["converted from bfloat16 to float32"]
    assert [node.op_type for node in model.graph] == ["MatMul"]
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), weight.astype(np.float32))


def _in_half(model: ir.Model, dtype: ir.DataType) -> None:
    """Convert every float tensor, as converters to half precision do with all of a model."""
    for value in (
        *model.graph.inputs,
        *model.graph.initializers.values(),
        *(v for n in model.graph for v in n.outputs),
    ):
        if value.dtype is ir.DataType.FLOAT:
            if value.const_value is not None:
                value.const_value = ir.Tensor(value.const_value.numpy().astype(dtype.numpy()), dtype, name=value.name)
            value.type = ir.TensorType(dtype)
