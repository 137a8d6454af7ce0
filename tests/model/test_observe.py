"""Errors of ONNX Runtime are one-line messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.errors import BackendError
from dovetail.model.observe import ObservedRun
from tests.planning import graph


def test_error_of_onnx_runtime_is_one_message(tmp_path: Path) -> None:
    model = graph("g (float[4] x) => (float[4] y) { i = Cast <to = 7> (x)  y = Gather(x, i) }")
    run = ObservedRun(model, ["y"], tmp_path)
    assert [name for name, _ in run.run({"x": np.zeros(4, np.float32)})] == ["y"]
    with pytest.raises(BackendError, match=r"ONNX Runtime cannot run the model: .*indices"):
        list(run.run({"x": np.full(4, 9, np.float32)}))
