"""A model on which onnx's C++ code crashes is refused, and this process survives."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import onnx
import pytest

from dovetail.errors import BackendError, InputError
from dovetail.model import onnx_child, onnx_crashes, opset
from dovetail.model.onnx_crashes import Step, refuse_crash
from dovetail.model.read import read
from tests.networks.small_graphs import LINEAR

MODEL = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> {LINEAR}')
ALL = (Step.CONVERT, Step.CHECK, Step.INFER)


@pytest.fixture(autouse=True)
def _nothing_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_crashes, "_PASSED", set())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(MODEL.SerializeToString())
    return path


def with_step(step: Step, source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the real script, in which a step is this function of the model."""
    changed = f"_before = _steps\n_steps = lambda module: {{**_before(module), {str(step)!r}: {source}}}"
    child = folder / "child.py"
    child.write_text(Path(onnx_child.__file__).read_text().replace("if __name__", f"{changed}\n\n\nif __name__"))
    monkeypatch.setattr(onnx_child, "__file__", str(child))


def test_a_good_model_passes_all_steps() -> None:
    refuse_crash(dict.fromkeys(ALL, MODEL))


def test_an_error_that_onnx_reports_is_left_to_the_caller() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[1,7] x, float[8,8] w) => (float[1,8] y) { y = MatMul(x, w) }'
    )
    refuse_crash({Step.INFER: proto})
    with pytest.raises(onnx.shape_inference.InferenceError):
        onnx.shape_inference.infer_shapes(proto, strict_mode=True)


@pytest.mark.parametrize("step", ALL)
def test_a_crash_names_the_step(step: Step, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_step(step, "lambda model: os.kill(os.getpid(), 11)", path.parent, monkeypatch)
    message = rf"the {step} of onnx 1\.\S+ crashed \(exit code -{signal.SIGSEGV}\)"
    with pytest.raises(InputError, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_model_on_which_the_version_converter_crashes(path: Path) -> None:
    """A segmentation fault of onnx 1.23.2, found by bench.fuzz: ``axes`` is one integer and not a list."""
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 16]> g (float[2,4] x) => (float[2,4] y) { y = ReduceL2<axes = 65536>(x) }'
    )
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match=r"the version converter of onnx 1\.\S+ crashed"):
        read(path)


def test_a_time_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_crashes, "TIME_LIMIT_S", 1)
    with_step(Step.CHECK, "lambda model: max(iter(int, 1))", path.parent, monkeypatch)
    with pytest.raises(InputError, match="did not finish within 1 s"):
        refuse_crash({Step.CHECK: MODEL})


def test_a_memory_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_step(Step.CHECK, "lambda model: bytes(1 << 40)", path.parent, monkeypatch)
    with pytest.raises(InputError, match=r"ran out of memory \(limit 8 GB\): a size in the model is too large"):
        refuse_crash({Step.CHECK: MODEL})


def test_a_child_that_does_not_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_crashes, "_extension", lambda: str(tmp_path / "none.so"))
    with pytest.raises(BackendError, match=r"onnx could not be started in a child process: .*none\.so"):
        refuse_crash({Step.CHECK: MODEL})


def test_a_model_that_has_passed_is_not_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_crash({Step.CHECK: MODEL})
    with_step(Step.CHECK, "lambda model: os.abort()", path.parent, monkeypatch)
    refuse_crash({Step.CHECK: MODEL})
    other = onnx.ModelProto.FromString(MODEL.SerializeToString())
    other.producer_name = "another"
    with pytest.raises(InputError, match="crashed"):
        refuse_crash({Step.CHECK: other})


def test_the_child_converts_to_the_same_opset() -> None:
    assert onnx_child.OPSET == opset.OPSET
    assert os.path.isabs(onnx_child.__file__)
