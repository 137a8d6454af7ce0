"""Read this first: the whole pipeline on a model of three operators, every stage called by hand.

A float graph becomes a plan, the plan becomes a QDQ graph, and the QDQ graph is both what ships and the simulation.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.model.read import read
from dovetail.model.session import Mode, open_session
from dovetail.numerics.affine import dequantize, quantize
from dovetail.op_support import W8A8
from dovetail.passes.normalize import normalize
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.storage import Reason
from dovetail.targets import open_target

TINY = """
<ir_version: 10, opset_import: ["": 21]>
tiny (float[1,4] x) => (float[1,2] y)
<float[4,3] w = {1,-2,3, 4,5,-6, 7,8,9, -1,0,1}, float[3,2] v = {1,2, -3,4, 5,-6}>
{
    h = MatMul(x, w)
    r = Relu(h)
    y = MatMul(r, v)
}
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    onnx.save(onnx.parser.parse_model(TINY), path)
    return path


@pytest.fixture
def samples() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)}


def test_the_stages_by_hand(tiny: Path, samples: dict[str, np.ndarray], tmp_path: Path) -> None:
    target = open_target("ort-cpu")

    model, _ = normalize(read(tiny))
    names = observed(model, target.table)
    assert set(names) == {"x", "h", "r", "y"}

    stats = collect(model, names, open_data(samples, input_specs(model)), workdir=tmp_path, histograms=False)
    assert stats.tensors["x"].low == samples["x"].min()
    assert stats.data.samples == 32

    plan = make_plan(model, target.table, stats, Request(W8A8))
    x = plan.tensors["x"].storage
    assert isinstance(x, QParams)
    assert x.dtype is DType.U8
    weight = plan.edges[Edge(model.graph[0].name or "", 1)].storage
    assert isinstance(weight, QParams)
    assert (weight.dtype, weight.axis) == (DType.S8, 1)
    assert plan.tensors["y"].why is Reason.OUTPUT

    (artifact,) = target.backend.emit(model, plan, tmp_path)
    onnx.checker.check_model(str(artifact.path), full_check=True)
    session = open_session(artifact.path, Mode.EXACT)
    (y,) = session.run(None, {"x": samples["x"][:1]})

    # The simulation only quantizes and dequantizes the tensors of the plan.
    def quantized(array: np.ndarray, name: str) -> np.ndarray:
        params = plan.tensors[name].storage
        assert isinstance(params, QParams)
        return dequantize(quantize(array, params), params)

    w, v = (np.array(model.graph.initializers[name].const_value.numpy()) for name in ("w", "v"))
    w_params, v_params = (plan.edges[Edge(node.name or "", 1)].storage for node in (model.graph[0], model.graph[2]))
    h = quantized(quantized(samples["x"][:1], "x") @ dequantize(quantize(w, w_params), w_params), "h")
    r = quantized(np.maximum(h, 0), "r")
    np.testing.assert_allclose(y, r @ dequantize(quantize(v, v_params), v_params), rtol=1e-6)


def test_the_pipeline_in_one_call(tiny: Path, samples: dict[str, np.ndarray], tmp_path: Path) -> None:
    before = tiny.read_bytes()
    result = dovetail.fit(tiny, target="ort-cpu", precision="w8a8", calibration=samples, output=tmp_path / "run")
    assert {name: str(verdict.status) for name, verdict in result.verdicts.items()} == {
        "normalized": "pass",
        "compiled": "pass",
        "fidelity": "pass",
        "numerics": "pass",
        "accuracy": "pass",
    }
    sqnr_db = result.metrics.sqnr_db.simulation_vs_float["y"]
    assert sqnr_db is not None
    assert 30 < sqnr_db < 60
    assert dovetail.load_result(tmp_path / "run" / "result.json") == result
    assert tiny.read_bytes() == before
