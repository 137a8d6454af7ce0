"""The real HTP compiler and emulator: what it compiles as planned, and silent changes that read-back detects."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import dovetail
from dovetail import zoo
from dovetail.backend import Artifact, Outcome, ReadBack
from dovetail.calibrate.user_code import load_function
from dovetail.edge import Edge
from dovetail.encoding import DType, Encoding, Granularity, QParams
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.model.session import Mode
from dovetail.model.write import write
from dovetail.numerics.metrics import Comparison
from dovetail.op_support import A8, A16, F16, FP16, W8A8, W8A16, OpSupport, Signature, Slot, signature
from dovetail.qdq.emit import emit_qdq
from dovetail.storage import IN_FLOAT32, Choice, Plan, Reason
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.targets.qnn_htp.dump import DumpError, load_dump
from dovetail.targets.qnn_htp.read_back import read_dump
from dovetail.verify.run import SessionRun
from tests.changed import with_op
from tests.planning import graph, noise, planned

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

ATTENTION = """
g (float[1,2,8,16] q, float[1,2,16,8] k) => (float[1,2,8,8] s)
{ m = MatMul(q, k)  s = Softmax(m) }
"""
NORM = """
g (float[1,8,16] x) => (float[1,8,16] y)
<float[16] gamma = {1,2,1,2,1,2,1,2,1,2,1,2,1,2,1,2}, float[16] beta = {1,-1,1,-1,1,-1,1,-1,1,-1,1,-1,1,-1,1,-1}>
{ a = Relu(x)  n = LayerNormalization <axis = -1> (a, gamma, beta)  y = Relu(n) }
"""


def compiled(body: str, target: Target, folder: Path) -> tuple[ReadBack, str]:
    """Plan with W8A16, emit, run the real compiler; return the read-back and the log."""
    model = graph(body)
    plan = planned(model, target, W8A16, data=noise(model))
    artifacts = target.backend.emit(model, plan, folder)
    result = target.backend.compile(artifacts, folder)
    assert result.error == ""
    return target.backend.read_back(result, plan), result.log


def changed(read_back: ReadBack) -> list[str]:
    assert read_back.tensors
    return [f"{row.tensor}: {row.detail}" for row in read_back.tensors if row.outcome is Outcome.CHANGED]


def with_support(target: Target, op: str, support: OpSupport) -> Target:
    return with_op(target, op, support)


@pytest.fixture
def htp() -> Target:
    return open_target("qnn-htp:sm8550")


def test_the_dtype_of_a_16_bit_second_operand_is_planned_and_not_changed_by_the_compiler(
    htp: Target, tmp_path: Path
) -> None:
    naive = with_support(htp, "MatMul", OpSupport((signature(A16, A16, out=A16),)))
    rows = changed(compiled(ATTENTION, naive, tmp_path)[0])
    assert rows == ["k: planned uint16, found uint8: converted before MatMul"]
    assert changed(compiled(ATTENTION, htp, tmp_path)[0]) == []


def test_layer_norm_runs_in_integers_only_with_an_int32_beta(htp: Target, tmp_path: Path) -> None:
    u16 = Slot(Encoding(DType.U16), constant=True)
    naive = with_support(htp, "LayerNormalization", OpSupport((Signature((Slot(A16), u16, u16), A16),)))
    rows = changed(compiled(NORM, naive, tmp_path)[0])
    assert "a: planned uint16, found float16: dequantized before LayerNorm" in rows
    assert changed(compiled(NORM, htp, tmp_path)[0]) == []


def test_a_matmul_from_8_to_16_bits_runs_in_float(htp: Target, tmp_path: Path) -> None:
    body = """g (float[1,8,8] q, float[1,8,8] k) => (float[1,8,8] y)
    { a = Relu(q)  b = Relu(k)  m = MatMul(a, b)  y = Relu(m) }"""
    relu = OpSupport((signature(A8, out=A8), signature(A16, out=A16)))
    naive = with_support(with_support(htp, "Relu", relu), "MatMul", OpSupport((signature(A8, A8, out=A16),)))
    rows = changed(compiled(body, naive, tmp_path)[0])
    assert [row.partition(": ")[2] for row in rows] == ["planned uint8, found float16: dequantized before MatMul"] * 2
    assert changed(compiled(body, htp, tmp_path)[0]) == []


def test_the_constant_vector_of_a_matmul_is_found_as_a_matrix(htp: Target, tmp_path: Path) -> None:
    """As in D-FINE, whose boxes are expected values of distributions."""
    values = ", ".join(f"{value / 4}" for value in range(16))
    body = f"g (float[1,8,16] x) => (float[1,8] y) <float[16] w = {{{values}}}> {{ s = Softmax(x)  y = MatMul(s, w) }}"
    read_back, _ = compiled(body, htp, tmp_path)
    assert {row.outcome for row in read_back.tensors} == {Outcome.MATCHED}


def test_a_qdq_pair_between_float_operators_is_removed(htp: Target, tmp_path: Path) -> None:
    model = graph("g (float[1,8,8] x) => (float[1,8,8] y) { a = Relu(x)  b = Neg(a)  c = Softmax(b)  y = Neg(c) }")
    fitted = planned(model, htp, W8A16, data=noise(model))
    alone = {
        name: choice if name == "b" else Choice(IN_FLOAT32, Reason.PINNED) for name, choice in fitted.tensors.items()
    }
    coarse = QParams(A8, np.float32(0.2), np.int32(128))
    naive = dataclasses.replace(fitted, tensors={**alone, "b": Choice(coarse, Reason.PINNED)})
    result = htp.backend.compile(htp.backend.emit(model, naive, tmp_path), tmp_path)
    assert changed(htp.backend.read_back(result, naive)) == [
        "b: planned uint8, found float16: a Q/DQ pair between float operators, removed before Softmax"
    ]
    # The outputs confirm it: they are those of the float graph; with the Q/DQ pair the SQNR would be 31 dB.
    sample = {"x": noise(model)["x"][0]}
    (output,) = htp.backend.runner.run(result, [sample])
    (exact,) = SessionRun(model, Mode.FLOAT, tmp_path)([sample])
    assert Comparison.of(exact["y"], output["y"]).sqnr_db > 45
    assert changed(compiled_plan(model, fitted, htp, tmp_path)) == []


def compiled_plan(model: ir.Model, plan: Plan, target: Target, folder: Path) -> ReadBack:
    result = target.backend.compile(target.backend.emit(model, plan, folder), folder)
    assert result.error == ""
    return target.backend.read_back(result, plan)


def test_a_16_bit_sigmoid_has_fixed_qparams(htp: Target, tmp_path: Path) -> None:
    body = "g (float[1,4,8] x) => (float[1,4,8] y) { a = Sigmoid(x)  y = Relu(a) }"
    naive = with_support(htp, "Sigmoid", OpSupport((signature(A16, out=A16),)))
    (row,) = changed(compiled(body, naive, tmp_path)[0])
    assert row.startswith("a: planned scale ")
    assert row.endswith(", found scale 1.52588e-05 and zero point 0")
    assert changed(compiled(body, htp, tmp_path)[0]) == []


def test_a_rejected_graph_is_an_error_that_names_the_node(htp: Target, tmp_path: Path) -> None:
    model = graph("g (float[1,4,8] x) => (float[1,4,8] y) { a = Relu(x)  b = Erf(a)  y = Relu(b) }")
    erf = with_support(htp, "Erf", OpSupport((signature(A16, out=A16),)))
    plan = planned(model, erf, data=noise(model))
    result = erf.backend.compile(erf.backend.emit(model, plan, tmp_path), tmp_path)
    (finding,) = result.findings
    assert str(finding.place) == "Erf/b"
    assert "Operators of type `Erf` are not supported by QNN EP" in finding.message
    assert finding.fix.startswith("HTP does not support this operator")
    assert result.error == f"Erf/b: {finding.message}"


def test_a_rank_above_5_is_reported_with_the_fix(htp: Target, tmp_path: Path) -> None:
    body = "g (float[1,2,2,2,2,2] x) => (float[1,2,2,2,2,2] y) { [turn] y = Transpose <perm = [0, 2, 1, 3, 4, 5]> (x) }"
    model = graph(body)
    result = htp.backend.compile(htp.backend.emit(model, planned(model, htp, data=noise(model)), tmp_path), tmp_path)
    by_node = {str(finding.place): finding for finding in result.findings}
    assert "incorrect Rank 6" in by_node["turn"].message
    assert by_node["turn"].fix == "HTP supports tensors up to rank 5: merge dimensions with a Reshape"


@pytest.mark.parametrize("precision", ["w8a16", "w8a8"])
@pytest.mark.parametrize("name", zoo.names())
def test_shipped_models_run_as_planned(name: str, precision: str, tmp_path: Path) -> None:
    shipped = zoo.load(name)
    result = dovetail.fit(
        shipped.model_path,
        target="qnn-htp:sm8550",
        precision=precision,
        calibration={key: array[:16] for key, array in shipped.calib().items()},
        output=tmp_path / "run",
    )
    passed = dict.fromkeys(("normalized", "compiled", "fidelity", "numerics", "accuracy"), Status.PASS)
    statuses = {key: verdict.status for key, verdict in result.verdicts.items()}
    assert statuses == {**passed, "device": Status.NOT_CHECKED}
    planned_names = {row.tensor for row in result.read_back}
    assert planned_names >= {value for value in shipped.calib() if value in {row.tensor for row in result.plan}}
    agreement = result.metrics.sqnr_db.target_vs_simulation
    assert agreement is not None
    if precision == "w8a16":
        assert min(value for value in agreement.values() if value is not None) >= 45


def test_8_bit_accuracy_on_the_emulator_is_that_of_the_simulation(tmp_path: Path) -> None:
    shipped, count = zoo.load("vit_digits"), 30
    result = dovetail.fit(
        shipped.model_path,
        target="qnn-htp:sm8550",
        precision="w8a8",
        range="mse",
        calibration=shipped.calib(),
        evaluation={key: array[:count] for key, array in {**shipped.eval(), **shipped.targets()}.items()},
        metric=load_function(shipped.metric),
        emulate=count,
        output=tmp_path / "run",
    )
    assert result.metrics.target_samples == count
    assert result.metrics.accuracy_emulated is not None
    (name,) = result.metrics.accuracy_emulated.figures["float"]
    simulation, target = (result.metrics.accuracy_emulated.figures[way][name] for way in ("simulation", "target"))
    assert target >= simulation - 1 / count - 1e-6  # 100 images and every shipped model: python -m bench.htp shipped


def test_a_dump_that_cannot_be_parsed_is_not_checked(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[1] x) => (float[1] y) { y = Relu(x) }'
        ),
        model,
    )
    plan = planned(graph("g (float[1] x) => (float[1] y) { y = Relu(x) }"), open_target("qnn-htp"))
    assert "0 graphs were dumped, expected one" in read_dump(model, tmp_path, plan, "").unparsed
    (tmp_path / "graph.json").write_text(json.dumps({"graph": {"tensors": {"x": {}}, "nodes": {}}}))
    assert "KeyError 'quant_params'" in read_dump(model, tmp_path, plan, "").unparsed
    raw = {"data_type": 0x777, "quant_params": {"encoding": 0, "scale_offset": {"scale": 0.5, "offset": 0}}}
    (tmp_path / "graph.json").write_text(json.dumps({"graph": {"tensors": {"x": raw}, "nodes": {}}}))
    assert "tensor 'x' has the unknown data type 0x777" in read_dump(model, tmp_path, plan, "").unparsed


def test_suffixes_of_moved_tensors_are_removed_from_dumped_names(tmp_path: Path) -> None:
    raw = {"data_type": 0x408, "quant_params": {"encoding": 0, "scale_offset": {"scale": 0.5, "offset": -3}}}
    node = {"type": "Relu", "input_names": ["x__q_token_7"], "output_names": ["y__q"]}
    content = {"graph": {"tensors": {"x__q_token_7": raw, "y__q": raw, "y__q_token_2": raw}, "nodes": {"n": node}}}
    (tmp_path / "g.json").write_text(json.dumps(content))
    dumped = load_dump(tmp_path)
    assert set(dumped.tensors) == {"x__q", "y__q", "y__q_token_2"}
    assert dumped.nodes[0].inputs == ("x__q",)
    assert (dumped.tensors["x__q"].scale, dumped.tensors["x__q"].zero_point) == (0.5, 3)


def test_only_a_scale_per_tensor_must_be_a_number(tmp_path: Path) -> None:
    """Of blocks, the dump has bytes of another member of a union as the scale: NaN becomes null."""

    def dump(encoding: int) -> Path:
        params = {"encoding": encoding, "scale_offset": {"scale": None, "offset": 22066}}
        tensors = {"w": {"data_type": 776, "quant_params": params}}
        (tmp_path / "g.json").write_text(json.dumps({"graph": {"tensors": tensors, "nodes": {}}}))
        return tmp_path

    assert load_dump(dump(5)).tensors["w"].granularity is Granularity.EXPANDED_BLOCK
    with pytest.raises(DumpError, match="NoneType"):
        load_dump(dump(0))


def test_every_sample_is_emulated_in_a_fresh_process(htp: Target, tmp_path: Path) -> None:
    model = graph("g (float[1,4,8] x) => (float[1,4,8] y) { y = Relu(x) }")
    data = noise(model, 2)
    plan = planned(model, htp, data=data)
    result = htp.backend.compile(htp.backend.emit(model, plan, tmp_path), tmp_path)
    outputs = list(htp.backend.runner.run(result, [{"x": sample} for sample in data["x"]]))
    for sample, output in zip(data["x"], outputs, strict=True):
        np.testing.assert_allclose(output["y"], np.maximum(sample, 0), atol=0.05)


def small_vit(folder: Path) -> Path:
    from tests.networks.vit_tiny import save

    return save(folder, layers=1)


def fit_small(folder: Path, target: str, **options: object) -> dovetail.Result:
    from tests.networks.vit_tiny import pictures

    path = small_vit(folder)
    return dovetail.fit(path, target=target, calibration={"image": pictures(2)}, output=folder / "run", **options)


def test_the_estimate_is_compared_with_that_of_float16(tmp_path: Path) -> None:
    result = fit_small(tmp_path, "qnn-htp:soc52", precision="w8a16", option={"vtcm_mb": "8"})
    assert not result.failed
    fitted, half = (result.metrics.latency_estimate_us[name] for name in ("fitted", "fp16"))
    assert fitted.lower_us <= fitted.mid_us <= fitted.upper_us
    assert fitted.ops_without_cost == half.ops_without_cost == 0
    assert fitted.mid_us < half.mid_us
    assert dovetail.load_result(tmp_path / "run/result.json") == result


def test_float16_is_a_precision_if_the_chip_supports_it(tmp_path: Path) -> None:
    result = fit_small(tmp_path, "qnn-htp:sm8550", precision="fp16")
    assert not result.failed
    assert result.metrics.latency_estimate_us == {}  # this SoC has no estimates
    agreement = result.metrics.sqnr_db.target_vs_float
    assert agreement is not None
    assert agreement["logits"] is not None
    assert 45 < agreement["logits"] < 100  # it computes in float16
    assert result.verdicts["fidelity"].status is Status.PASS
    assert "of which float16 can reach 48 dB" in result.verdicts["numerics"].reason


def test_float16_on_a_chip_without_it_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    said = "fp16 is not available on qnn-htp:qcs6490: HTP v68 does not compute in float16"
    with pytest.raises(InputError, match=said):
        fit_small(tmp_path, "qnn-htp:qcs6490", precision="fp16")
    assert not (tmp_path / "run").exists()


def test_a_float16_island_in_an_integer_graph(tmp_path: Path) -> None:
    shipped = zoo.load("vit_digits")
    result = dovetail.fit(
        shipped.model_path,
        target="qnn-htp:sm8550",
        precision="w8a16",
        calibration={key: array[:8] for key, array in shipped.calib().items()},
        output=tmp_path / "run",
        keep=("blocks.1/*=fp16", "blocks.1.*=fp16"),
        emulate=3,
    )
    assert not result.failed, {name: verdict.reason for name, verdict in result.verdicts.items()}
    assert str(result.verdicts["fidelity"].status) == "pass"
    dtypes = {row.original_name: row.dtype for row in result.plan if row.edge is None}
    assert dtypes["blocks.1/Add_out"] is DType.F16
    assert dtypes["blocks.2/Add_out"] is DType.U16


def test_an_island_of_one_operator_stays_float(htp: Target, tmp_path: Path) -> None:
    """A plain QDQ graph cannot express it: the provider compiles Dequantize, Log, Quantize as an integer Log."""
    model = graph("g (float[1,8,16] x) => (float[1,8,16] y) { a = Sigmoid(x)  l = Log(a)  y = Neg(l) }")
    float_log = with_support(htp, "Log", OpSupport((signature(F16, out=F16),)))
    plan = planned(model, float_log, W8A16, data=noise(model))
    assert not plan.tensors["l"].storage.dtype.is_quantized
    naive = tuple(Artifact("model", path) for path in write(emit_qdq(model, plan), tmp_path / "naive.onnx"))
    rows = changed(htp.backend.read_back(htp.backend.compile(naive, tmp_path), plan))
    assert rows == ["l: planned float16, found uint16: written by Log"]
    assert changed(compiled_plan(model, plan, htp, tmp_path)) == []


@pytest.mark.parametrize("activation", ["Relu(c)", "Clip(c, low, high)"])
def test_a_single_convolution_and_its_activation_stay_float(activation: str, htp: Target, tmp_path: Path) -> None:
    """ONNX Runtime quantizes the weights of a layer between Dequantize and Quantize, with its activation in between."""
    model = graph(f"""g (float[1,2,5,7] x) => (float[1,2,5,7] y)
        <float[2,2,1,1] w = {{1, -2, 3, 0.5}}, float low = {{0}}, float high = {{6}}>
        {{ a = Conv(x, w)  c = Conv(a, w)  r = {activation}  y = Conv(r, w) }}""")
    plan = planned(model, htp, W8A8, data=noise(model), keep={"c": FP16, "r": FP16})
    naive = tuple(Artifact("model", path) for path in write(emit_qdq(model, plan), tmp_path / "naive.onnx"))
    as_given = htp.backend.read_back(htp.backend.compile(naive, tmp_path), plan)
    assert {tensor.outcome for tensor in as_given.tensors} != {Outcome.MATCHED}
    held = htp.backend.compile(htp.backend.emit(model, plan, tmp_path), tmp_path)
    assert held.error == ""
    assert {tensor.outcome for tensor in htp.backend.read_back(held, plan).tensors} == {Outcome.MATCHED}


@pytest.mark.parametrize(
    ("op", "product"), [("MatMul", "MatMul(a, b)"), ("Einsum", 'Einsum <equation = "abqd,abkd->abqk"> (a, b)')]
)
def test_a_single_matmul_of_two_dequantized_operands_stays_float(
    op: str, product: str, htp: Target, tmp_path: Path
) -> None:
    """As ``--keep NAME=fp16`` plans it. The operands alone make the provider compile it in integers, or reject it."""
    model = graph(f"""g (float[1,2,8,8] q, float[1,2,8,8] k) => (float[1,2,8,8] y)
        {{ a = Relu(q)  b = Relu(k)  m = {product}  y = Softmax(m) }}""")
    in_float = with_support(htp, op, OpSupport((signature(F16, F16, out=F16),)))
    data = noise(model)
    plan = planned(model, in_float, W8A16, data=data)
    assert not plan.tensors["m"].storage.dtype.is_quantized
    assert plan.tensors["a"].storage.dtype.is_quantized
    naive = tuple(Artifact("model", path) for path in write(emit_qdq(model, plan), tmp_path / "naive.onnx"))
    as_given = htp.backend.compile(naive, tmp_path)
    assert as_given.error or changed(htp.backend.read_back(as_given, plan))
    result = htp.backend.compile(htp.backend.emit(model, plan, tmp_path), tmp_path)
    assert result.error == ""
    assert changed(htp.backend.read_back(result, plan)) == []
    sample = {name: array[0] for name, array in data.items()}
    (output,) = htp.backend.runner.run(result, [sample])
    (exact,) = SessionRun(model, Mode.FLOAT, tmp_path)([sample])
    assert Comparison.of(exact["y"], output["y"]).sqnr_db > 45


def test_the_dequantized_input_of_a_float_convolution_is_found(htp: Target, tmp_path: Path) -> None:
    """ONNX Runtime moves its DequantizeLinear after a Transpose, and gives both other names."""
    weight = "float[4,4,3,3] w = {" + ", ".join(["0.1", "-0.2", "0.3"] * 48) + "}"
    model = graph(
        f"""g (float[1,4,8,8] x) => (float[1,4,4,4] y) <{weight}>
        {{ [c0] a = Conv<pads = [1,1,1,1]>(x, w) b = Sigmoid(a) [m0] c = Mul(a, b)
           [c1] d = Conv<pads = [1,1,1,1], strides = [2,2]>(c, w) [s1] e = Sigmoid(d) [m1] f = Mul(d, e)
           [c2] h = Conv<pads = [1,1,1,1]>(f, w) y = Relu(h) }}"""
    )
    plan = planned(model, htp, W8A8, keep=dict.fromkeys(("c1", "s1", "m1"), FP16))
    compiled = htp.backend.compile(htp.backend.emit(model, plan, tmp_path), tmp_path)
    rows = {(row.tensor, row.edge): row for row in htp.backend.read_back(compiled, plan).tensors}
    assert rows["c", Edge("c1", 0)].outcome is Outcome.MATCHED
    assert {row.outcome for row in rows.values()} == {Outcome.MATCHED}


def test_a_conversion_behind_a_transpose_is_detected(htp: Target, tmp_path: Path) -> None:
    body = """g (float[1,8,2,16] q, float[1,8,2,16] k) => (float[1,2,8,8] s)
    { a = Relu(k)  t = Transpose <perm = [0, 2, 3, 1]> (a)  r = Transpose <perm = [0, 2, 1, 3]> (q)
      m = MatMul(r, t)  s = Softmax(m) }"""
    naive = with_support(htp, "MatMul", OpSupport((signature(A16, A16, out=A16),)))
    rows = changed(compiled(body, naive, tmp_path)[0])
    assert any("planned uint16, found uint8: converted before MatMul" in row for row in rows)
    assert changed(compiled(body, htp, tmp_path)[0]) == []


@pytest.mark.parametrize("chip", ["sm8450", "qcs6490"])
def test_a_16_bit_layer_norm_runs_in_integers_on_older_chips(chip: str, tmp_path: Path) -> None:
    assert changed(compiled(NORM, open_target(f"qnn-htp:{chip}"), tmp_path)[0]) == []
