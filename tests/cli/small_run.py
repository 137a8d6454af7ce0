"""A small model, its data and a run of it that takes as long as a test needs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import dovetail

MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,4] x) => (float[1,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { h = Relu(x)  y = MatMul(h, w) }"""
FIT = ("fit", "model.onnx", "--target", "ort-cpu", "--calib", "calib.npz", "-o", "run")
SLOW_FIT = (*FIT[:4], "--calib", "my_data:slow", "-o", "run")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(dovetail.__file__).parents[1])}
_DATA = """
import time
import numpy as np


def slow():
    open("started", "w").close()
    for number in range(COUNT):
        time.sleep(0.02)
        yield {"x": np.full((1, 4), number % 7, np.float32)}


def broken():
    yield {"x": np.ones((1, 4), np.float32)}
    raise MemoryError
"""
Start = Callable[..., subprocess.Popen[str]]


def slow_data(count: int = 3000) -> str:
    """The module ``my_data``: every sample of ``slow`` takes 20 ms, and the first creates the file ``started``."""
    return _DATA.replace("COUNT", str(count))


def wait_for_file(path: Path, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)
