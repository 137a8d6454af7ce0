"""A model with one scale per weight, as ONNX Runtime's quantizer writes by default, repaired for XNNPACK."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import dovetail
from dovetail import zoo
from dovetail.encoding import DType, Granularity
from dovetail.finding import Status

pytest.importorskip("executorch", reason="needs the package executorch")
REPROS = Path(__file__).parents[2] / "repros"


def test_weights_with_one_scale_compile(tmp_path: Path) -> None:
    shipped = zoo.load("vit_digits")
    images = {"images": shipped.calib()["images"][:16]}
    result = dovetail.repair(
        REPROS / "dig_def.onnx",
        target="xnnpack",
        baselines="none",
        calibration=images,
        output=tmp_path / "run",
        float_model=shipped.model_path,
    )
    for name in ("normalized", "repaired", "compiled", "fidelity", "numerics"):
        assert result.verdicts[name].status is Status.PASS, result.verdicts[name].reason
    # Linear layers that are quantized at run time have the one scale of the file for every channel.
    rows = [row for row in result.plan if row.granularity is Granularity.AXIS and row.scale_from == "given"]
    assert rows
    assert all(isinstance(row.scale, list) and len(set(row.scale)) == 1 for row in rows)


UINT8 = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,8] x) => (float[1,4] y) <float s = {0.05}, uint8 z = {139}, float m_s = {0.1}, uint8 m_z = {121},
 float[4] w_s = {0.01, 0.02, 0.01, 0.02}, int8[4] w_z = {0, 0, 0, 0}, int8[8,4] w = {VALUES}>
{ x_q = QuantizeLinear(x, s, z) x_dq = DequantizeLinear(x_q, s, z) w_dq = DequantizeLinear<axis=1>(w, w_s, w_z)
  m = MatMul(x_dq, w_dq) m_q = QuantizeLinear(m, m_s, m_z) m_dq = DequantizeLinear(m_q, m_s, m_z) y = Exp(m_dq) }"""


def test_uint8_activations_become_int8_with_the_same_scales(tmp_path: Path) -> None:
    """Q132: 128 is subtracted from the zero points."""
    model = onnx.parser.parse_model(UINT8.replace("VALUES", ", ".join(str(n % 120 - 60) for n in range(0, 608, 19))))
    (finding,) = dovetail.check(model, target="xnnpack")
    assert (finding.code, finding.numbers) == ("Q132", {"tensors": 2.0})
    result = dovetail.repair(model, target="xnnpack", baselines="none", output=tmp_path / "run")
    for name in ("compiled", "fidelity", "numerics"):
        assert result.verdicts[name].status is Status.PASS, result.verdicts[name].reason
    stored = {row.tensor: (row.dtype, row.scale, row.zero_point) for row in result.plan if row.edge is None}
    assert stored["x"] == (DType.S8, pytest.approx(0.05), 139 - 128)
    assert stored["m"] == (DType.S8, pytest.approx(0.1), 121 - 128)
    assert "Missing out variants" in (tmp_path / "run" / "repair.json").read_text()
