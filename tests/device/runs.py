"""A toy target with a device folder: a run of it, and its device, which is this machine in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import targets
from dovetail.backend import CompileResult, DeviceCase, DeviceFiles, DeviceKit
from tests import toy_target
from tests.changed import changed

BODY = """
<ir_version: 10, opset_import: ["": 17]>
g (float[1,6,4] x, float[1,6,4] "in/y.2") => (float[1,6,2] z, float[1,6,4] "sum:0")
<float[4,2] w = {1,-2, 3,4, -5,6, 7,8}, float[2] b = {0.1, -0.2}>
{
    "sum:0" = Add(x, "in/y.2")
    r = Relu("sum:0")
    m = MatMul(r, w)
    z = Add(m, b)
}
"""
RANKED = """
<ir_version: 10, opset_import: ["": 17]>
g (float[1,8,2] x) => (float[1,4] scores, float[1,4,2] rows)
<int64[1] k = {4}, int64[1] last = {2}, float[2,2] w = {1,0, 0,1}, int64[3] wide = {1,4,2}>
{
    boxes = MatMul(x, w)
    s = ReduceMax <axes = [2], keepdims = 0> (boxes)
    scores, i = TopK(s, k)
    j = Unsqueeze(i, last)
    full = Expand(j, wide)
    rows = GatherElements <axis = 1> (boxes, full)
}
"""
SESSION = """
import onnxruntime


def open_model(model, backend=""):
    if backend == "broken":
        raise RuntimeError("unknown backend")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # without it, 8-bit sums saturate on some CPUs
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def emulated():
    return False


def versions():
    return {"onnxruntime": onnxruntime.__version__}
"""


def device_files(compiled: CompileResult, case: DeviceCase) -> DeviceFiles:
    lines = "".join(" ".join(files.values()) + "\n" for files in case.samples)
    return DeviceFiles((compiled.artifacts[0].path,), {"device_session.py": SESSION, "inputs.txt": lines})


def with_device(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """Register the toy as a target with a device folder."""
    monkeypatch.setitem(targets.FAMILIES, "toy", "tests.toy_target")
    toy = changed(toy_target.TOY, **{"device": DeviceKit(device_files), **changes})
    monkeypatch.setattr(toy_target, "TOY", toy)


def samples(count: int = 3, body: str = BODY) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(body)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {name: random.standard_normal((count, *shape[1:])).astype(np.float32) for name, shape in shapes.items()}


def fit(folder: Path, *, count: int = 3, body: str = BODY, **options: object) -> dovetail.Result:
    """Fit the toy model into ``folder/run``."""
    onnx.save(onnx.parser.parse_model(body), folder / "model.onnx")
    return dovetail.fit(
        folder / "model.onnx",
        target="toy",
        output=folder / "run",
        **{"calibration": samples(count, body), **options},  # type: ignore[arg-type]
    )


def on_device(
    folder: Path, *arguments: object, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the script of a device folder in another process."""
    command = [str(argument) for argument in (sys.executable, folder / "run_on_device.py", *arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder.parent)


def change(path: Path, **values: object) -> None:
    """Change keys of a JSON document."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
