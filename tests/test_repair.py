"""``dovetail repair`` on ort-cpu: a model that another tool quantized keeps its scales and runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import dovetail
from dovetail.cli.main import main
from dovetail.encoding import QParams
from dovetail.finding import Status
from dovetail.model.read import read
from dovetail.qdq.invert import invert
from dovetail.repairs import FLOAT, RECORD, Repair
from dovetail.storage import ScaleSource
from tests.equality import model_from
from tests.networks.quantized_elsewhere import calibration, quantized_elsewhere

# ONNX Runtime's own quantizer reaches 38 dB on these samples.
FLOOR_DB = 35.0


def test_scales_are_kept_and_the_model_runs(tmp_path: Path) -> None:
    path, run = quantized_elsewhere(tmp_path / "quantized.onnx", signed=False), tmp_path / "run"
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    result = dovetail.repair(path, target="ort-cpu", calibration=calibration(), output=run)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before == result.model_sha256
    assert {name: verdict.status for name, verdict in result.verdicts.items()} == dict.fromkeys(
        ("normalized", "repaired", "compiled", "fidelity", "numerics", "accuracy"), Status.PASS
    )
    assert (result.model, result.precision) == ("quantized.onnx", "w8a8")
    record = msgspec.json.decode((run / RECORD).read_bytes(), type=Repair)
    assert record.missing == {}
    assert all("bias" in name for name in record.changed)  # their scale follows from input and weight
    imported = {name: c.storage for name, c in invert(read(path))[1].tensors.items() if isinstance(c.storage, QParams)}
    kept = [row for row in result.plan if row.edge is None and row.scale_from is ScaleSource.GIVEN]
    rows = [row for row in kept if row.tensor in imported]
    assert len(rows) > 50
    for row in rows:
        assert (row.scale, row.zero_point) == (float(imported[row.tensor].scale), int(imported[row.tensor].zero_point))
    logits = result.metrics.sqnr_db.simulation_vs_float["logits"]
    assert logits is not None
    assert logits > FLOOR_DB
    assert (run / FLOAT).exists()
    # A group does not take the scale of one member: q, k and v are slices of one layer, and the scale of q, which is
    # multiplied by 0.18, would clip the others.
    tensors = [quality.sqnr_db for quality in result.metrics.tensors]
    assert min(value for value in tensors if value is not None) > 20


def test_weights_are_not_rounded_anew(tmp_path: Path) -> None:
    path = quantized_elsewhere(tmp_path / "quantized.onnx", signed=False)
    with pytest.raises(dovetail.InputError, match="--rounding scale-search is not supported here: `dovetail repair`"):
        dovetail.repair(path, target="ort-cpu", output=tmp_path / "run", rounding="scale-search")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stored", ["int4", "uint4", "int32"])
def test_activations_that_no_precision_uses_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stored: str
) -> None:
    path = tmp_path / "model.onnx"
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[1,2] x) => (float[1,2] y)
    <float s = {{0.1}}, {stored} z = {{0}}, int8[2,2] w = {{1,2,3,4}}, int8 zw = {{0}}>
    {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, s, zw) y = MatMul(d, v) }}"""
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(SystemExit) as ended:
        main(["repair", str(path), "--target", "ort-cpu", "--calib", "random", "-o", str(tmp_path / "run")])
    assert ended.value.code == 2
    message = f"1 of 1 quantized activations are {stored}, which no precision of a target uses: add --precision"
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_command_lists_what_was_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = quantized_elsewhere(tmp_path / "quantized.onnx", signed=False)
    with pytest.raises(SystemExit) as ended:
        main(["repair", str(path), "--target", "ort-cpu", "--calib", "random", "-o", str(tmp_path / "run")])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "removed: the Q/DQ pair on blocks.0.attn.qkv/MatMul_out" in printed
    assert "changed: blocks.0.attn.proj.bias at" in printed


def test_a_layer_that_the_other_tool_left_in_float_stays_in_float(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[4,8] x) => (float[4,8] y) <float s = {0.03}, int8 z = {0}>
    { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) w = DequantizeLinear(wq, ws, z)
      [first] h = MatMul(d, w) r = Relu(h) [last] y = MatMul(r, v) }"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    arrays = {
        "wq": random.integers(-127, 128, (8, 8)).astype(np.int8),
        "ws": np.float32(0.005),
        "v": random.standard_normal((8, 8)).astype(np.float32),
    }
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    data = {"x": random.standard_normal((32, 4, 8)).astype(np.float32)}
    result = dovetail.repair(path, target="ort-cpu", calibration=data, output=tmp_path / "run")
    quantized = {row.original_name for row in result.plan if row.dtype.is_quantized}
    assert "v" not in quantized
    assert {"x", "wq.1"} <= quantized  # wq.1 is wq as float
    assert result.verdicts["repaired"].status is Status.PASS


HALF_GELU = """g (float16[1,8,16] x) => (float16[1,8,16] y)
{ xf = Cast<to = 1>(x) xq = QuantizeLinear(xf, s, z) xd = DequantizeLinear(xq, s, z) xc = Cast<to = 10>(xd)
  wd = DequantizeLinear<axis = 1>(w, ws) wc = Cast<to = 10>(wd) h = MatMul(xc, wc)
  a = Mul(h, r) e = Erf(a) o = Add(e, one) m = Mul(h, o) y = Mul(m, half) }"""


@pytest.mark.parametrize(("slope", "op_type"), [(0.5**0.5, "Gelu"), (0.6, "Erf")])
def test_a_gelu_in_float16_is_one_operator(tmp_path: Path, slope: float, op_type: str) -> None:
    """Its constant is sqrt(1/2) as far as float16 holds it: HTP has Gelu and no Erf. Another slope is no GELU."""
    random = np.random.default_rng(0)
    weights = {"w": random.integers(-127, 128, (16, 16)).astype(np.int8), "ws": np.full(16, 0.002, np.float32)}
    ones = {"one": np.float16(1), "half": np.float16(0.5)}
    model = model_from(HALF_GELU, **weights, s=np.float32(0.03), z=np.int8(0), r=np.float16(slope), **ones)
    ir.save(model, tmp_path / "half.onnx")
    data = {"x": random.standard_normal((4, 1, 8, 16)).astype(np.float32)}
    result = dovetail.repair(tmp_path / "half.onnx", target="ort-cpu", calibration=data, output=tmp_path / "run")
    assert {"Gelu", "Erf"} & {node.op_type for node in ir.load(tmp_path / "run" / FLOAT).graph} == {op_type}
    assert result.verdicts["repaired"].status is Status.PASS
