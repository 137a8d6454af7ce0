"""Models that other tools quantized, with Q/DQ pairs in the wrong places, repaired with their own scales and built."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import dovetail
from dovetail import zoo
from dovetail.cli.main import main
from dovetail.config import FitOptions
from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.model.read import read
from dovetail.qdq.invert import invert
from dovetail.repairs import RECORD, Repair, precision_of, repair
from dovetail.report.result import load_result
from dovetail.storage import Choice, ScaleSource
from dovetail.targets import open_target
from dovetail.targets.tensorrt.table import F8, FP8
from tests.backends.tensorrt.building import attention_note
from tests.equality import model_from
from tests.networks.attention_layer import layer
from tests.networks.quantized_elsewhere import calibration, quantized_elsewhere
from tests.planning import noise, planned

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")


def test_an_int8_vit_of_another_tool_is_fused_with_its_own_scales(tmp_path: Path) -> None:
    path = quantized_elsewhere(tmp_path / "quantized.onnx", signed=True)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    assert precision_of(path) == "w8a8"
    result = dovetail.repair(path, target="tensorrt:sm89", calibration=calibration(), output=tmp_path / "run")
    record = msgspec.json.decode((tmp_path / "run" / RECORD).read_bytes(), type=Repair)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before == result.model_sha256
    assert result.verdicts["fidelity"].status is Status.PASS
    assert attention_note(4, "4 (Int8 -> Int8)") in result.notes
    assert [text.split(":")[0] for text in record.as_given] == ["not compiled"]
    assert (record.changed, record.missing) == ({}, {})
    assert {f"blocks.{i}.attn/Softmax_out at blocks.{i}.attn/MatMul_2:0" for i in range(4)} <= set(record.kept)
    assert "blocks.0.attn.proj/MatMul_out" in record.removed
    imported = invert(read(path))[1]
    rows = {row.tensor: row.scale for row in result.plan if row.edge and row.scale_from is ScaleSource.GIVEN}
    kept = [name for name in rows if name in imported.tensors and isinstance(imported.tensors[name].storage, QParams)]
    assert len(kept) > 10
    for name in kept:
        storage = imported.tensors[name].storage
        assert isinstance(storage, QParams)
        assert rows[name] == float(storage.scale)


def test_a_model_that_already_deploys_keeps_its_scales(tmp_path: Path) -> None:
    """A float32 file of our own: every scale is kept, and both notes compare with a float16 engine."""
    images = calibration()
    dovetail.fit(
        zoo.load("vit_digits").model_path,
        target="tensorrt:sm89",
        precision="w8a8",
        option={"compute": "fp32"},
        calibration=images,
        output=tmp_path / "first",
    )
    path = tmp_path / "first/model.onnx"
    result = dovetail.repair(path, target="tensorrt:sm89", calibration=images, output=tmp_path / "run")
    record = msgspec.json.decode((tmp_path / "run" / RECORD).read_bytes(), type=Repair)
    assert (record.changed, record.missing, record.removed) == ({}, {}, ())
    assert len(record.kept) == 68
    note = attention_note(4, "4 (Int8 -> Int8)")
    assert {note, f"as given: {note}"} <= set(result.notes)


def test_a_qdq_pair_on_the_scores_and_none_on_the_softmax_output_in_float16(tmp_path: Path) -> None:
    """Another tool's export of scaled_dot_product_attention: float16, 0 blocks fused."""
    target = open_target("tensorrt")
    model = layer(masked=True)
    plan = planned(model, target, FP8, data=noise(model))
    add = next(node for node in model.graph if node.outputs[0].name == "s1")
    edges = {**plan.edges, Edge(str(add.name), 0): Choice(QParams(F8, np.float32(0.02), np.int32(0)), "")}
    del edges[Edge("mix", 0)]
    (artifact,) = target.backend.emit(model, dataclasses.replace(plan, edges=edges), tmp_path)
    result, record = repair(
        artifact.path, FitOptions("tensorrt:sm89", "fp8"), tmp_path / "run", calibration=noise(model)
    )
    assert attention_note(1, "none") in record.as_given
    assert attention_note(1, "1 (FP8 -> FP8)") in result.notes
    assert [finding.message.rpartition(": ")[2] for finding in record.findings_as_given] == [
        f"there is a Q/DQ pair on the scores, before Add {add.name!r}"
    ]
    assert list(record.missing) == ["p0 at mix:0"]
    assert record.missing["p0 at mix:0"].endswith("Softmax has the fixed output scale 0.00223214")
    assert record.removed == ("s0",)
    assert record.changed == {}


@pytest.fixture
def in_fp8(tmp_path: Path) -> Callable[..., Path]:
    """One emitted attention layer, without the Q/DQ pairs on some edges."""

    def save(*without: Edge) -> Path:
        model = layer()
        target = open_target("tensorrt")
        plan = planned(model, target, FP8, data=noise(model))
        edges = {edge: choice for edge, choice in plan.edges.items() if edge not in without}
        return target.backend.emit(model, dataclasses.replace(plan, edges=edges), tmp_path)[0].path

    return save


def test_without_data_no_scale_may_be_missing(
    in_fp8: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = in_fp8(Edge("mix", 0))  # the target fixes the scale of this edge
    run = tmp_path / "run"
    with pytest.raises(SystemExit) as ended:
        main(["repair", str(path), "--target", "tensorrt:sm89", "--option", "compute=fp32", "-o", str(run)])
    assert ended.value.code == 0
    assert "the metrics do not tell how accurate the model is" in " ".join(capsys.readouterr().out.split())
    result = load_result(run / "result.json")
    assert result.calibration is not None
    assert result.calibration.random
    assert any(note.startswith("no calibration data was given: every scale came with") for note in result.notes)
    record = msgspec.json.decode((run / RECORD).read_bytes(), type=Repair)
    assert (record.changed, list(record.missing)) == ({}, ["p0 at mix:0"])
    assert attention_note(1, "1 (FP8 -> FP8)") in result.notes
    assert not [v for node in ir.load(run / "model.onnx").graph for v in node.outputs if v.dtype is ir.DataType.FLOAT16]

    path = in_fp8(Edge("out", 0))
    with pytest.raises(SystemExit) as ended:
        main(["repair", str(path), "--target", "tensorrt:sm89", "-o", str(tmp_path / "other")])
    assert ended.value.code == 2
    error = "the model has no scale for 'o', and there is no calibration data to find one: pass --calib DATA"
    assert error in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "other").exists()


AWKWARD = """g (float16[1,64,64] x) => (float16[1,64,64] y)
<int64[4] heads = {1,64,2,32}, int64[3] flat = {1,64,64}>
{ wqd = DequantizeLinear<axis = 0>(wq, wqs) wqc = Cast<to = 10>(wqd) wqt = Transpose<perm = [1,0]>(wqc)
  wkd = DequantizeLinear<axis = 0>(wk, wks) wkt = Transpose<perm = [1,0]>(wkd) wkc = Cast<to = 10>(wkt)
  wvd = DequantizeLinear<axis = 0>(wk, wks) wvc = Cast<to = 10>(wvd) wvt = Transpose<perm = [1,0]>(wvc)
  wod = DequantizeLinear<axis = 0>(wo, wos) woc = Cast<to = 10>(wod) wot = Transpose<perm = [1,0]>(woc)
  xf = Cast<to = 1>(x) xq = QuantizeLinear(xf, s, z) xd = DequantizeLinear(xq, s, z) xc = Cast<to = 10>(xd)
  q0 = MatMul(xc, wqt) q1 = Reshape(q0, heads) q2 = Transpose<perm = [0,2,1,3]>(q1)
  q3 = Cast<to = 1>(q2) q4 = QuantizeLinear(q3, s, z) q5 = DequantizeLinear(q4, s, z) q6 = Cast<to = 10>(q5)
  q = Mul(q6, factor)
  k0 = MatMul(xc, wkc) k1 = Reshape(k0, heads) k2 = Transpose<perm = [0,2,1,3]>(k1)
  k3 = Cast<to = 1>(k2) k4 = QuantizeLinear(k3, s, z) k5 = DequantizeLinear(k4, s, z) k6 = Cast<to = 10>(k5)
  k = Transpose<perm = [0,1,3,2]>(k6)
  v0 = MatMul(xc, wvt) v1 = Reshape(v0, heads) v2 = Transpose<perm = [0,2,1,3]>(v1)
  v3 = Cast<to = 1>(v2) v4 = QuantizeLinear(v3, s, z) v5 = DequantizeLinear(v4, s, z) v = Cast<to = 10>(v5)
  s0 = MatMul(q, k) p = Softmax<axis = -1>(s0) [mix] o = MatMul(p, v) o1 = Transpose<perm = [0,2,1,3]>(o)
  o2 = Reshape(o1, flat) o3 = Cast<to = 1>(o2) o4 = QuantizeLinear(o3, s, z) o5 = DequantizeLinear(o4, s, z)
  o6 = Cast<to = 10>(o5) [out] y0 = MatMul(o6, wot) y = Add(y0, x) }"""


def test_casts_scales_and_transposes_between_qdq_pairs_and_matmuls(tmp_path: Path) -> None:
    """A quantized model that was converted to float16: no Q/DQ pair feeds its MatMul directly, and a weight is tied."""
    random = np.random.default_rng(0)
    weights = {name: random.integers(-127, 128, (64, 64)).astype(np.int8) for name in ("wq", "wk", "wo")}
    scales = {f"{name}s": random.uniform(0.001, 0.002, 64).astype(np.float32) for name in weights}
    model = model_from(AWKWARD, s=np.float32(0.03), z=np.int8(0), factor=np.float16(0.1768), **weights, **scales)
    path = tmp_path / "quantized.onnx"
    ir.save(model, path)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    data = {"x": random.standard_normal((2, 1, 64, 64)).astype(np.float32)}
    result, record = repair(path, FitOptions("tensorrt:sm89", "w8a8"), tmp_path / "run", calibration=data)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert attention_note(1, "1 (Int8 -> Int8)") in result.notes
    counts = {rewrite.name: (len(rewrite.changed), len(rewrite.declined)) for rewrite in record.rewrites}
    assert counts["fold_casts"] == (9, 0)
    assert counts["scale_before_quantize"] == (1, 0)
    assert counts["transpose_before_quantize"] == (1, 0)
    assert counts["transpose_stored_weights"] == (4, 0)
    assert list(record.missing) == ["p at mix:0"]
    assert record.changed == {}
    emitted = ir.load(tmp_path / "run" / "model.onnx").graph
    for node in (node for node in emitted if node.op_type == "MatMul"):
        assert {str(v.producer().op_type) for v in node.inputs} == {"DequantizeLinear"}  # type: ignore[union-attr]
    assert [node.op_type for node in emitted].count("Cast") == 2  # of the input and of the output
    scales = {row.tensor: row.scale for row in result.plan if row.edge and row.dtype.is_quantized}
    query = next(scale for name, scale in scales.items() if name.startswith("q"))
    assert query == pytest.approx(float(np.float16(0.03)) * float(np.float16(0.1768)), rel=1e-3)


def test_a_float_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.load("vit_digits").model_path
    with pytest.raises(InputError, match="is not quantized: use `dovetail fit` for a float model"):
        precision_of(path)
    with pytest.raises(SystemExit) as ended:
        main(["repair", str(path), "--target", "tensorrt", "--calib", "random", "-o", str(tmp_path / "run")])
    assert ended.value.code == 2
    assert not (tmp_path / "run").exists()


GIVEN = """g (float[1,64,64] x) => (float[1,64,64] y)
<int64[4] heads = {1,64,2,32}, int64[3] flat = {1,64,64}, float f = {0.1768}>
{ xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
  cq = QuantizeLinear(x, t, z) cd = DequantizeLinear(cq, t, z)
  a = DequantizeLinear<axis = 1>(wq, u) b = DequantizeLinear<axis = 1>(wk, u)
  c = DequantizeLinear<axis = 1>(wv, u) d = DequantizeLinear<axis = 1>(wo, u)
  q0 = MatMul(xd, a) q1 = Reshape(q0, heads) q2 = Transpose<perm = [0,2,1,3]>(q1)
  qq = QuantizeLinear(q2, s, z) qd = DequantizeLinear(qq, s, z) q = Mul(qd, f)
  k0 = MatMul(cd, b) k1 = Reshape(k0, heads) k2 = Transpose<perm = [0,2,1,3]>(k1)
  kq = QuantizeLinear(k2, s, z) kd = DequantizeLinear(kq, s, z) k = Transpose<perm = [0,1,3,2]>(kd)
  v0 = MatMul(cd, c) v1 = Reshape(v0, heads) v2 = Transpose<perm = [0,2,1,3]>(v1)
  vq = QuantizeLinear(v2, s, z) v = DequantizeLinear(vq, s, z)
  [scores] s0 = MatMul(q, k) p0 = Softmax<axis = -1>(s0) pq = QuantizeLinear(p0, h, z) p = DequantizeLinear(pq, h, z)
  [mix] o = MatMul(p, v) o1 = Transpose<perm = [0,2,1,3]>(o) o2 = Reshape(o1, flat)
  oq = QuantizeLinear(o2, s, z) od = DequantizeLinear(oq, s, z) y = MatMul(od, d) }"""


def given_file(path: Path, zero_point: np.generic, other_scale: float = 0.03) -> Path:
    """One int8 block in float32 without node names, with a Mul and a Transpose after the Q/DQ pairs of q and k."""
    random = np.random.default_rng(0)
    weights = {name: random.integers(-127, 128, (64, 64)).astype(np.int8) for name in ("wq", "wk", "wv", "wo")}
    scales = {"s": np.float32(0.03), "t": np.float32(other_scale), "h": np.float32(1 / 127)}
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {GIVEN}')
    constants = {**weights, **scales, "u": random.uniform(0.001, 0.002, 64).astype(np.float32), "z": zero_point}
    tensors = (onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())
    proto.graph.initializer.extend(tensors)
    onnx.save(proto, path)
    return path


def repaired(path: Path) -> Repair:
    images = {"x": np.random.default_rng(1).standard_normal((2, 1, 64, 64)).astype(np.float32)}
    output = path.parent / "run"
    return repair(path, FitOptions("tensorrt:sm89", "w8a8"), output, calibration=images)[1]


def test_the_model_as_given_is_looked_up_as_the_builder_fuses_it(tmp_path: Path) -> None:
    record = repaired(given_file(tmp_path / "given.onnx", np.int8(0)))
    assert record.as_given[1] == attention_note(1, "1 (Int8 -> Int8)")
    assert record.findings_as_given == ()
    assert (record.changed, record.missing, record.removed) == ({}, {}, ())


def test_uint8_with_zero_point_0_is_reported_and_repaired(tmp_path: Path) -> None:
    record = repaired(given_file(tmp_path / "given.onnx", np.uint8(0)))
    (finding,) = record.findings_as_given
    assert "TensorRT has no uint8 and reads these tensors as another type" in finding.message
    assert {name.split()[0] for name in record.changed} >= {"x", "o2"}
    # These ranges start at 0, so the model as given clips what it computes: that is kept.
    restored = next(rewrite for rewrite in record.rewrites if rewrite.name == "restore_activations")
    assert [site.where for site in restored.changed] == ["q2", "k2", "v2", "o2"]


def test_different_qdq_pairs_on_one_tensor_are_not_reported_as_kept(tmp_path: Path) -> None:
    record = repaired(given_file(tmp_path / "given.onnx", np.int8(0), other_scale=0.004))
    reasons = {name: why for name, why in record.changed.items() if name.startswith("x at")}
    assert len(reasons) == 3
    assert all("widest of several scales in the input model" in why for why in reasons.values())
    assert not any(name.startswith("x at") for name in record.kept)


def test_a_quantized_tensor_that_is_also_an_output_is_not_fused(tmp_path: Path) -> None:
    path = given_file(tmp_path / "given.onnx", np.int8(0))
    proto = onnx.load(path)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, (1, 2, 64, 64)))
    onnx.save(proto, path)
    record = repaired(path)
    assert record.as_given[1].startswith("1 attention blocks: as one kernel in the planned type: none")
