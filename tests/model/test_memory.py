"""Tensors that do not fit into memory are refused before anything is allocated for them."""

from __future__ import annotations

import resource
from pathlib import Path

import onnx
import pytest

import dovetail
from dovetail.checking import check_file
from dovetail.errors import InputError
from dovetail.model.memory import memory_bytes, require_memory_together, size_bytes
from dovetail.model.read import read
from dovetail.targets import open_target
from tests.equality import model_from

REPROS = Path(__file__).parents[1] / "repros"


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("huge_input", r"tensor 'x' of shape \[1000000, 1000000, 8\] needs 29802.3 GiB, but this machine"),
        ("range_1e10", r"tensor 'r' of shape \[10000000000\] needs 37.3 GiB, but this machine or process has"),
    ],
)
def test_refused_by_fit(name: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.model.memory.memory_bytes", lambda: 8 << 30)  # on every machine
    with pytest.raises(InputError, match=match):
        dovetail.fit(REPROS / f"{name}.onnx", target="ort-cpu", calibration="random", output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_check_allocates_only_to_calibrate() -> None:
    path, target = REPROS / "huge_input.onnx", open_target("ort-cpu", {})
    assert check_file(path, target) == ()
    with pytest.raises(InputError, match="tensor 'x' of shape"):
        check_file(path, target, calibration="random")


def test_shape_inference_allocates_nothing_for_a_long_vector(tmp_path: Path) -> None:
    """onnx 1.23 would take 280 GB for it."""
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[2147483647] x) => (float[1] y) { a = Mul(x, x) y = Neg(a) }'
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    assert len(read(tmp_path / "m.onnx").graph) == 2


def test_tensors_that_do_not_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_from("g (float[256] x) => (float[256] y) { a = Neg(x) y = Abs(a) }")
    values = [value for node in model.graph for value in node.outputs]
    assert [size_bytes(value) for value in values] == [1024, 1024]
    monkeypatch.setattr("dovetail.model.memory.memory_bytes", lambda: 2048)
    require_memory_together(values)
    monkeypatch.setattr("dovetail.model.memory.memory_bytes", lambda: 2047)
    with pytest.raises(InputError, match=r"need 0.0 GiB together, .* the largest is 'a'"):
        require_memory_together(values)


def test_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 20, resource.RLIM_INFINITY))
    assert memory_bytes() == 1 << 20
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory_bytes() > 1 << 28
