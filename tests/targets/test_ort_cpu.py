"""ort-cpu: read-back reports every difference, and graphs that once failed compile and run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import dovetail
from dovetail import zoo
from dovetail.backend import Outcome
from dovetail.encoding import DType, QParams
from dovetail.finding import Status
from dovetail.model.read import read
from dovetail.plan.rows import read_plan
from dovetail.qdq.invert import invert
from dovetail.targets.ort_cpu.read_back import read_optimized
from dovetail.targets.ort_cpu.table import TABLE
from tests.planning import graph

REPROS = Path(__file__).parents[1] / "repros"
RANDOM = np.random.default_rng(0)


def save(path: Path, body: str, **weights: np.ndarray) -> Path:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {body}')
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    onnx.save(model, path)
    return path


def fit(path: Path, shape: tuple[int, ...], **options: object) -> dovetail.Result:
    data = {"x": RANDOM.normal(size=(8, *shape)).astype(np.float32)}
    return dovetail.fit(path, target="ort-cpu", calibration=data, output=path.parent / "run", force=True, **options)


CONVS = """
g (float[1,4,6,6] x) => (float[1,4,6,6] y)
{ [a] p = Conv(x, w) r = Relu(p) [b] q = Conv(r, v) [c] y = Conv(q, u) }
"""


def convs(folder: Path) -> Path:
    weights = {name: RANDOM.normal(size=(4, 4, 1, 1)) for name in ("w", "v", "u")}
    return save(folder / "convs.onnx", CONVS, **weights)


def assert_passes(result: dovetail.Result) -> None:
    assert {name: verdict.status for name, verdict in result.verdicts.items()} == dict.fromkeys(
        ("normalized", "compiled", "fidelity", "numerics", "accuracy"), Status.PASS
    ), {name: verdict.reason for name, verdict in result.verdicts.items()}


@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
def test_a_node_kept_in_float_runs_in_float(precision: str, tmp_path: Path) -> None:
    result = fit(convs(tmp_path), (4, 6, 6), precision=precision, keep=("b=fp32",))
    assert_passes(result)
    optimized = ir.load(tmp_path / "run/optimized.onnx")
    assert any(node.op_type == "Conv" for node in optimized.graph)


@pytest.mark.parametrize("body", ["m = MatMul(x, w) r = Relu(m) y = MatMul(r, w)", "m = MatMul(x, w) y = MatMul(m, v)"])
def test_tied_weights_and_weights_with_equal_scales(body: str, tmp_path: Path) -> None:
    weight = RANDOM.normal(size=(8, 8))
    body = f"g (float[1,8] x) => (float[1,8] y) {{ {body} }}"
    weights = {"w": weight} | ({"v": -weight} if "v)" in body else {})
    assert_passes(fit(save(tmp_path / "tied.onnx", body, **weights), (8,)))


@pytest.mark.parametrize(
    ("body", "shape", "weights"),
    [
        ("(float[3,5,8] x) => (float[3,5,8] y) { y = MatMul(x, w) }", (3, 5, 8), {"w": (3, 8, 8)}),
        ("(float[5,8] x) => (float[5] y) { y = MatMul(x, w) }", (5, 8), {"w": (8,)}),
        (
            "(float[1,4,5,5] x) => (float[1,6,5,5] y) { y = ConvTranspose <group = 2> (x, w, b) }",
            (4, 5, 5),
            {"w": (4, 3, 1, 1), "b": (6,)},
        ),
        ("(float[1,4,5,5] x) => (float[1,4,5,5] y) { k = Conv(x, w) y = Mul(k, k) }", (4, 5, 5), {"w": (4, 4, 1, 1)}),
        (
            "(float[1,8,8] x) => (float[1,8,8] y) { t = Transpose <perm = [0, 2, 1]> (x) y = MatMul(x, t) }",
            (8, 8),
            {},
        ),
    ],
)
def test_unusual_operands(
    body: str, shape: tuple[int, ...], weights: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    arrays = {name: RANDOM.normal(size=size) for name, size in weights.items()}
    assert_passes(fit(save(tmp_path / "odd.onnx", f"g {body}", **arrays), shape))


def test_a_padding_value_outside_the_range_does_not_saturate(tmp_path: Path) -> None:
    body = """g (float[1,4,6,6] x) => (float[1,4,8,8] y) <int64[8] pads = {0,0,1,1,0,0,1,1}, float five = {5}>
    { s = Sigmoid(x) p = Pad(s, pads, five) y = Conv(p, w) }"""
    result = fit(save(tmp_path / "pad.onnx", body, w=RANDOM.normal(size=(4, 4, 1, 1))), (4, 6, 6))
    assert_passes(result)
    sqnr_db = result.metrics.sqnr_db.simulation_vs_float["y"]
    assert sqnr_db is not None
    assert sqnr_db > 30


def test_a_hard_swish_in_another_layout_is_read_back(tmp_path: Path) -> None:
    """ONNX Runtime writes it without a name, and with channels last renames what its QuantizeLinear writes."""
    body = """g (float[1,8,12,12] x) => (float[1,8,12,12] y) <float k = {2}>
        { c = Conv(x, w) h = HardSwish(c) m = Mul(h, k) y = Conv(m, v) }"""
    weights = {name: RANDOM.normal(size=(8, 8, 1, 1)) for name in ("w", "v")}
    assert_passes(fit(save(tmp_path / "m.onnx", body, **weights), (8, 12, 12)))
    run = tmp_path / "run"
    renamed = onnx.load(run / "optimized.onnx")
    for node in renamed.graph.node:
        for names in (node.input, node.output):
            names[:] = [name + "_token_9" if name in ("h", "h__q") else name for name in names]
    onnx.save(renamed, run / "renamed.onnx")
    read = read_optimized(run / "model.onnx", run / "renamed.onnx", read_plan(run / "plan.json"))
    assert not [row for row in read.tensors if row.outcome is Outcome.NOT_FOUND]


def test_a_clip_that_its_scale_makes_superfluous_is_read_back(tmp_path: Path) -> None:
    """ONNX Runtime removes it, and the Q/DQ pair after it; the pair before it has the same scale (PicoDet)."""
    body = """g (float[1,8,12,12] x) => (float[1,8,12,12] y) <float three = {3}, float zero = {0}, float six = {6}>
        { c = Conv(x, w) a = Add(c, three) k = Clip(a, zero, six) m = Mul(c, k) d = Div(m, six) y = Conv(d, v) }"""
    weights = {name: RANDOM.normal(size=(8, 8, 1, 1)) / 8 for name in ("w", "v")}
    assert_passes(fit(save(tmp_path / "m.onnx", body, **weights), (8, 12, 12)))
    run = tmp_path / "run"
    renamed = onnx.load(run / "optimized.onnx")
    assert "Clip" not in {node.op_type for node in renamed.graph.node}
    for node in renamed.graph.node:  # with channels last
        for names in (node.input, node.output):
            names[:] = [f"{name}_token_9" if name in ("a__q", "k__dq") else name for name in names]
    onnx.save(renamed, run / "renamed.onnx")
    read = read_optimized(run / "model.onnx", run / "renamed.onnx", read_plan(run / "plan.json"))
    assert not [row for row in read.tensors if row.outcome is Outcome.NOT_FOUND]


def test_an_operator_without_its_q_dq_pair_is_not_found(tmp_path: Path) -> None:
    """Only a Clip can be superfluous: a Sin and what reads it became one operator in float, and a Q/DQ pair is lost."""
    body = """g (float[1,4,4,4] x) => (float[1,4,4,4] y) <float s = {0.05}, uint8 z = {128}>
        { xq = QuantizeLinear(x, s, z) xr = DequantizeLinear(xq, s, z) c = Neg(xr) cq = QuantizeLinear(c, s, z)
          [pair] cr = DequantizeLinear(cq, s, z) a = Sin(cr) aq = QuantizeLinear(a, s, z)
          ar = DequantizeLinear(aq, s, z) y = Abs(ar) }"""
    emitted = onnx.load(save(tmp_path / "emitted.onnx", body))
    _, plan = invert(read(tmp_path / "emitted.onnx"))
    nodes = {node.output[0]: node for node in emitted.graph.node}
    nodes["y"].op_type, nodes["y"].domain, nodes["y"].input[0] = "SinAbs", "com.microsoft", "cr"
    nodes["cr"].name = "another"
    for output in ("a", "aq", "ar"):
        emitted.graph.node.remove(nodes[output])
    onnx.save(emitted, tmp_path / "fused.onnx")
    rows = read_optimized(tmp_path / "emitted.onnx", tmp_path / "fused.onnx", plan).tensors
    assert [row.outcome for row in rows if row.tensor == "a"] == [Outcome.NOT_FOUND]


def tamper(folder: Path, change: object) -> list[str]:
    """The details of the changed tensors when read-back gets an optimized graph that was tampered with."""
    model = onnx.load(folder / "optimized.onnx")
    change(model)  # type: ignore[operator]
    onnx.save(model, folder / "tampered.onnx")
    read = read_optimized(folder / "model.onnx", folder / "tampered.onnx", read_plan(folder / "plan.json"))
    return [row.detail for row in read.tensors if row.outcome is Outcome.CHANGED]


def set_initializer(suffix: str, change: object) -> object:
    def apply(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name.endswith(suffix))
        array = change(onnx.numpy_helper.to_array(tensor).copy())  # type: ignore[operator]
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))

    return apply


def test_read_back_reports_changed_qparams(tmp_path: Path) -> None:
    body = "g (float[1,4,6,6] x) => (float[1,4,6,6] y) { [a] p = Conv(x, w, b) [c] y = Conv(p, v) }"
    weights = {"w": (4, 4, 1, 1), "v": (4, 4, 1, 1), "b": (4,)}
    path = save(tmp_path / "m.onnx", body, **{name: RANDOM.normal(size=size) for name, size in weights.items()})
    assert_passes(fit(path, (4, 6, 6), io="quantized"))
    run = tmp_path / "run"
    assert tamper(run, lambda model: None) == []
    assert any("scale" in detail for detail in tamper(run, set_initializer("x__scale", lambda a: a * 2)))
    assert any("zero point" in detail for detail in tamper(run, set_initializer("x__zero_point", lambda a: a + 1)))
    assert any("scale" in detail for detail in tamper(run, set_initializer("w__scale", lambda a: a * 2)))


def test_read_back_reports_a_changed_axis(tmp_path: Path) -> None:
    body = "g (float[1,4] x) => (float[1,4] y) { y = MatMul(x, w) }"
    assert_passes(fit(save(tmp_path / "m.onnx", body, w=RANDOM.normal(size=(4, 4))), (4,), precision="w8a16"))

    def change_axis(model: onnx.ModelProto) -> None:
        dequantizes = [n for n in model.graph.node if n.op_type == "DequantizeLinear"]
        next(a for n in dequantizes for a in n.attribute if a.name == "axis").i = 0

    assert tamper(tmp_path / "run", change_axis) == ["planned scales along axis 1, found scales along axis 0"]


def test_a_planned_float_weight_that_became_integer_is_reported(tmp_path: Path) -> None:
    assert_passes(fit(convs(tmp_path), (4, 6, 6), keep=("b=fp32",)))
    run = tmp_path / "run"
    plan = read_plan(run / "plan.json")
    assert [str(edge) for edge, choice in plan.edges.items() if not isinstance(choice.storage, QParams)] == [
        "b:0",
        "b:1",
    ]

    def integer(model: onnx.ModelProto) -> None:
        node = next(n for n in model.graph.node if n.op_type == "Conv")
        node.name, node.op_type = "b", "QLinearConv"  # as ONNX Runtime does when WeightBiasQuantization is on

    assert "planned float32, found integers: it runs as QLinearConv" in tamper(run, integer)


ATTENTION = """
g (float[1,2,16,16] x, float[1,2,16,16] z) => (float[1,2,16,16] y)
{ [scores] s = MatMul(x, z) [soft] p = Softmax(s) [mix] y = MatMul(p, x) }
"""


def fit_attention(folder: Path, **options: object) -> dovetail.Result:
    random = np.random.default_rng(0)
    data = {name: random.normal(size=(8, 2, 16, 16)).astype(np.float32) for name in ("x", "z")}
    path = save(folder / "attention.onnx", ATTENTION)
    return dovetail.fit(path, target="ort-cpu", calibration=data, output=folder / "run", force=True, **options)


def running_ops(folder: Path) -> dict[str, str]:
    """Node name -> the operator that ONNX Runtime runs."""
    return {str(node.name): node.op_type for node in ir.load(folder / "run/optimized.onnx").graph}


@pytest.mark.parametrize(
    ("keep", "node", "in_integers", "in_float"),
    [
        ("soft=fp32", "soft", "QLinearSoftmax", "Softmax"),
        ("p=fp32", "soft", "QLinearSoftmax", "Softmax"),
        ("scores=fp32", "scores", "QLinearMatMul", "MatMul"),
        ("mix=fp32", "mix", "MatMulIntegerToFloat", "MatMul"),
    ],
)
def test_an_operator_kept_in_float_between_quantized_tensors_runs_in_float(
    keep: str, node: str, in_integers: str, in_float: str, tmp_path: Path
) -> None:
    assert_passes(fit_attention(tmp_path))
    assert running_ops(tmp_path)[node] == in_integers
    result = fit_attention(tmp_path, keep=(keep,))
    assert_passes(result)
    assert running_ops(tmp_path)[node] == in_float
    assert any(row.detail == f"computed in float by {in_float}" for row in result.read_back)

    def integer(model: onnx.ModelProto) -> None:
        next(n for n in model.graph.node if n.name == node).op_type = in_integers

    assert f"planned float32, found integers: it runs as {in_integers}" in tamper(tmp_path / "run", integer)


def test_an_operator_of_a_float_network_between_quantized_ones_runs_in_float(tmp_path: Path) -> None:
    result = fit_attention(tmp_path, precision="fp32", keep=("scores=w8a8", "mix=w8a8"))
    assert_passes(result)
    assert running_ops(tmp_path)["soft"] == "Softmax"
    assert running_ops(tmp_path)["scores"] == "QLinearMatMul"


@pytest.mark.parametrize("options", [{"precision": "fp32"}, {"keep": ("*=fp32",)}])
@pytest.mark.parametrize("name", zoo.names())
def test_fp32_is_fp32(name: str, options: dict[str, object], tmp_path: Path) -> None:
    shipped = zoo.load(name)
    data = {key: array[:2] for key, array in shipped.calib().items()}
    result = dovetail.fit(shipped.model_path, target="ort-cpu", calibration=data, output=tmp_path / "run", **options)
    assert_passes(result)
    figures = result.metrics.sqnr_db.target_vs_float
    assert figures is not None
    assert min(db for db in figures.values() if db is not None) > 100
    ops = {node.op_type for node in ir.load(tmp_path / "run/optimized.onnx").graph}
    assert not {op for op in ops if op.startswith(("QLinear", "Quantize", "Dequantize"))}


def test_a_model_whose_softmax_rows_became_zero(tmp_path: Path) -> None:
    model, data = (REPROS / name for name in ("mynet_softmax_wrap.onnx", "mynet_softmax_wrap_calib.npz"))
    assert_passes(dovetail.fit(model, target="ort-cpu", calibration=data, output=tmp_path / "run"))


@pytest.mark.parametrize("elements", [1, 2, 3, 17, 64, 197, 1000])
@pytest.mark.parametrize("input_scale", [1e-4, 0.06, 1.0])
def test_no_row_of_a_softmax_becomes_zero_whatever_its_calibrated_range(elements: int, input_scale: float) -> None:
    random = np.random.default_rng(elements)
    x = (random.uniform(-128, 127, (64, elements)) * random.uniform(0, 1, (64, 1)) * input_scale).astype(np.float32)
    stored = np.clip(np.rint(x / np.float32(input_scale)) + 128, 0, 255)
    real = (stored - 128) * input_scale
    exact = np.exp(real - real.max(-1, keepdims=True))
    exact /= exact.sum(-1, keepdims=True)
    model = graph(f"g (float[64,{elements}] x) => (float[64,{elements}] y) {{ y = Softmax(x) }}")
    node = next(iter(model.graph))
    output_scale = TABLE["Softmax"].output_scale
    assert output_scale is not None
    for largest in (1.0, 0.7, 0.3, 0.1, 0.01, 1e-3, 1e-6):
        scale = output_scale(node, DType.U8, largest / 255)
        assert scale >= np.float32(largest / 255)
        codes = run_softmax(x, input_scale, scale)
        expected = np.clip(np.rint(exact / scale), 0, 255)
        assert np.abs(codes - expected).max() <= 1, (largest, scale)
        assert not np.any((codes == 0).all(-1) & (expected > 1).any(-1))


def test_the_kernel_writes_zero_for_a_probability_of_one_if_its_output_scale_is_smaller() -> None:
    """The kernel's defect, without which the limit on the scale would not be needed."""
    x = np.zeros((1, 8), np.float32)
    x[0, 0] = 8
    assert run_softmax(x, 16 / 255, 1 / 2000)[0, 0] == 0
    assert run_softmax(x, 16 / 255, 1 / 1000)[0, 0] == 255


def run_softmax(x: np.ndarray, input_scale: float, output_scale: float) -> np.ndarray:
    """The uint8 output of ONNX Runtime's kernel, whose input has the zero point 128."""
    shape = ",".join(map(str, x.shape))
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (uint8[{shape}] x) => (uint8[{shape}] y)
        <float xs = {{{input_scale:.9g}}}, uint8 xz = {{128}}, float ys = {{{output_scale:.9g}}}, uint8 yz = {{0}}>
        {{ y = com.microsoft.QLinearSoftmax<axis = -1, opset = 21>(x, xs, xz, ys, yz) }}"""
    content = onnx.parser.parse_model(text).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    stored = np.clip(np.rint(x / np.float32(input_scale)) + 128, 0, 255).astype(np.uint8)
    return np.asarray(session.run(None, {"x": stored})[0]).astype(int)


@pytest.mark.parametrize("precision", ["w8a8", "fp32"])
def test_a_pad_as_large_as_the_kernel_of_its_max_pool_is_deployed(precision: str, tmp_path: Path) -> None:
    body = """g (float[1,4,6,6] x) => (float[1,4,5,5] y) <int64[8] pads = {0, 0, 2, 2, 0, 0, 2, 2}>
        { c = Conv(x, w) p = Pad(c, pads) m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(p) y = Conv(m, v) }"""
    path = save(tmp_path / "padded.onnx", body, **{name: RANDOM.normal(size=(4, 4, 1, 1)) for name in ("w", "v")})
    result = fit(path, (4, 6, 6), precision=precision)
    assert all(result.verdicts[name].status is Status.PASS for name in ("normalized", "compiled", "numerics"))
    onnxruntime.InferenceSession(tmp_path / "run/model.onnx", providers=["CPUExecutionProvider"])
