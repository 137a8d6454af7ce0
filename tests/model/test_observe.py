"""Intermediate tensors are read, the model is not changed, and errors of ONNX Runtime are one-line messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.errors import BackendError
from dovetail.model import write
from dovetail.model.observe import ObservedRun
from tests.planning import graph


def test_error_of_onnx_runtime_is_one_message(tmp_path: Path) -> None:
    model = graph("g (float[4] x) => (float[4] y) { i = Cast <to = 7> (x)  y = Gather(x, i) }")
    run = ObservedRun(model, ["y"], tmp_path)
    assert [name for name, _ in run.run({"x": np.zeros(4, np.float32)})] == ["y"]
    with pytest.raises(BackendError, match=r"ONNX Runtime cannot run the model: .*indices"):
        list(run.run({"x": np.full(4, 9, np.float32)}))


def test_a_model_whose_weights_are_in_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_INLINE_LIMIT_BYTES", 0)
    model = graph("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { h = Add(x, w)  y = Mul(h, w) }")
    run = ObservedRun(model, ["h"], tmp_path)
    observed = {name: array.tolist() for name, array in run.run({"x": np.ones(2, np.float32)})}
    assert observed == {"h": [2, 3]}
    assert [value.name for value in model.graph.outputs] == ["y"]
    assert list(tmp_path.iterdir()) == []
