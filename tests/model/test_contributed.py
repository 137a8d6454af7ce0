"""Operators of ONNX Runtime's own domain, rewritten on read: each gives what ONNX Runtime's own kernel gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import dovetail
from dovetail import zoo
from dovetail.checking import check_file
from dovetail.config import FitOptions
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.job import prepare
from dovetail.model.contributed import CONTRIBUTED, REWRITES
from dovetail.model.origin import nodes_of, origin_of
from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.qdq.invert import invert
from dovetail.targets import open_target
from tests.equality import Array, assert_traceable, check_valid, normal, random_inputs, run, sqnr_db

HEAD = '<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>'
# The first Gelu uses another polynomial for the error function, and sums of many terms differ in their order.
FLOOR_DB = 110.0


WEIGHTS = {
    "b": normal(8, seed=1),
    "g": normal(8, seed=2) + 1,
    "beta": normal(8, seed=3),
    "skip": normal(6, 8, seed=4),
    "m": normal(2, 6, 8, seed=5),
    "m2": normal(6, 8, 5, seed=11),
    "w": normal(8, 5, seed=6),
    "v": normal(8, seed=7),
    "k": normal(6, 4, 3, 3, seed=8),
    "kb": normal(6, seed=9),
    "z": normal(2, 6, 9, 9, seed=10),
}
# Operator -> what computes r from x; with and without each optional input and attribute.
CASES = {
    "Gelu": ("com.microsoft.Gelu(x)",),
    "BiasGelu": ("com.microsoft.BiasGelu(x, b)",),
    "FastGelu": ("com.microsoft.FastGelu(x)", "com.microsoft.FastGelu(x, b)", 'com.microsoft.FastGelu(x, "")'),
    "QuickGelu": ("com.microsoft.QuickGelu(x)", "com.microsoft.QuickGelu<alpha = 1.5>(x)"),
    "SkipLayerNormalization": (
        "com.microsoft.SkipLayerNormalization(x, m, g)",
        "com.microsoft.SkipLayerNormalization<epsilon = 0.5>(x, m, g, beta)",
        "com.microsoft.SkipLayerNormalization(x, m, g, beta, b)",
        'com.microsoft.SkipLayerNormalization(x, m, g, "", b)',
        "com.microsoft.SkipLayerNormalization(x, skip, g, beta)",
    ),
    "LayerNormalization": (
        "LayerNormalization(x, g)",
        "LayerNormalization<epsilon = 0.5>(x, g, beta)",
        'LayerNormalization<axis = 2, stash_type = 1>(x, g, "")',
        "LayerNormalization<axis = 1>(x, skip)",
    ),
    "FusedMatMul": (
        "com.microsoft.FusedMatMul(x, w)",
        "com.microsoft.FusedMatMul<alpha = 0.125>(x, w)",
        "com.microsoft.FusedMatMul<transB = 1, alpha = 0.5>(x, m)",
        "com.microsoft.FusedMatMul<transA = 1>(x, m)",
        "com.microsoft.FusedMatMul<transA = 1, transB = 1>(m, x2)",
        "com.microsoft.FusedMatMul<transBatchA = 1>(x, m2)",
        "com.microsoft.FusedMatMul<transBatchA = 1, transBatchB = 1, transA = 1>(x, m)",
        "com.microsoft.FusedMatMul<transBatchA = 1, transBatchB = 1, transB = 1, alpha = 2.0>(x, m)",
        "com.microsoft.FusedMatMul<transB = 1>(x, v)",
    ),
    "FusedConv": (
        "com.microsoft.FusedConv(x, k)",
        'com.microsoft.FusedConv<pads = [1,1,1,1], strides = [2,2], activation = "Relu">(x, k, kb)',
        'com.microsoft.FusedConv<pads = [1,1,1,1], activation = "Relu">(x, k, kb, z)',
        'com.microsoft.FusedConv<pads = [1,1,1,1], activation = "Tanh">(x, k, "", z)',
        'com.microsoft.FusedConv<activation = "Sigmoid">(x, k, kb)',
        'com.microsoft.FusedConv<activation = "LeakyRelu", activation_params = [0.3]>(x, k)',
        'com.microsoft.FusedConv<activation = "HardSigmoid", activation_params = [0.3, 0.4]>(x, k)',
        'com.microsoft.FusedConv<activation = "Clip", activation_params = [-0.5, 0.75]>(x, k, kb)',
    ),
}
ALL = [(op, text) for op, texts in CASES.items() for text in texts]


def _save(path: Path, body: str, inputs: str, outputs: str = "float[a,b,c] y", opset: int = 17) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f"{HEAD.format(opset=opset)} g ({inputs}) => ({outputs}) {{ {body} }}")
    for name, array in _used(body).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path.write_bytes(proto.SerializeToString())
    return proto


def _used(body: str) -> dict[str, Array]:
    names = {word.strip('(),<>" ') for word in body.replace("(", " ").replace(")", " ").replace(",", " ").split()}
    return {name: array for name, array in WEIGHTS.items() if name in names}


def test_every_rewrite_is_tested() -> None:
    assert set(CASES) == set(REWRITES)


@pytest.mark.parametrize(("op", "text"), ALL, ids=[text for _, text in ALL])
@pytest.mark.parametrize("opset", [13, 21])
def test_rewrite_equals_the_kernel(op: str, text: str, opset: int, tmp_path: Path) -> None:
    """The input and the result have second consumers, and the result is also a graph output."""
    inputs = "float[2,4,9,9] x" if op == "FusedConv" else "float[2,6,8] x"
    inputs += ", float[2,4,6] x2" if "x2" in text else ""
    dims = {"FusedConv": "a,b,c,d"}.get(op, "a,b" if "(x, v)" in text else "a,b,c")
    outputs = ", ".join(f"float[{dims}] {name}" for name in ("r", "y", "s"))
    path = tmp_path / "m.onnx"
    _save(
        path, f"r = {text} y = Neg(r) s = Abs(r) t = Abs(x)", inputs, f"{outputs}, {inputs.split(', ')[0][:-1]}t", opset
    )
    model = read(path)
    assert [node.op_type for node in model.graph if node.domain] == []
    infer_shapes(model)
    check_valid(model)
    assert_traceable(model, {*WEIGHTS, "x", "x2", "r", "y", "s", "t"})
    (node,) = [value.producer() for value in model.graph.outputs if value.name == "r"]
    assert node is not None
    assert nodes_of(node) == (f"{op}/r",)
    assert origin_of(node.outputs[0]).exact
    feed = random_inputs(model)
    expected, actual = _run_file(path, feed), run(model, feed)
    assert list(expected) == list(actual)
    for name, array in expected.items():
        assert array.shape == actual[name].shape
        assert sqnr_db(array, actual[name]) >= FLOOR_DB, name
    normalized = run(normalize(model)[0], feed)
    assert sqnr_db(expected["y"], normalized["y"]) >= 100


def _run_file(path: Path, feed: dict[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def test_sum_output_of_skip_layer_normalization(tmp_path: Path) -> None:
    body = 'y, "", "", s = com.microsoft.SkipLayerNormalization(x, m, g, beta, b) t = Neg(s)'
    path = tmp_path / "m.onnx"
    outputs = "float[2,6,8] y, float[2,6,8] t, float[2,6,8] s"
    _save(path, body, "float[2,6,8] x", outputs)
    model = read(path)
    feed = random_inputs(model)
    expected, actual = _run_file(path, feed), run(model, feed)
    assert list(actual) == ["y", "t", "s"]
    for name in actual:
        assert sqnr_db(expected[name], actual[name]) >= FLOOR_DB


def test_chain_of_fused_matmuls_without_recorded_shapes(tmp_path: Path) -> None:
    """The rank of the second one is known only after the first is rewritten."""
    body = """a = com.microsoft.FusedMatMul<transA = 1>(x, m) c = com.microsoft.Gelu(a)
        d = com.microsoft.FusedMatMul<transA = 1>(c, a) y = com.microsoft.FusedMatMul<transB = 1>(d, c)"""
    path = tmp_path / "m.onnx"
    _save(path, body, "float[2,6,8] x", "float[2,8,8] y")
    model = read(path)
    feed = random_inputs(model)
    assert sqnr_db(_run_file(path, feed)["y"], run(model, feed)["y"]) >= FLOOR_DB


def test_float16_operator_gets_float16_constants(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    proto = _save(path, "y = com.microsoft.QuickGelu(x)", "float16[2,6] x", "float16[2,6] y")
    onnx.checker.check_model(proto)
    check_valid(read(path))


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (
            "[n] y = com.microsoft.FusedMatMul<transA = 1>(u, w)",
            r"'n' \(com.microsoft.FusedMatMul\) .* rank .* --shape",
        ),
        (
            '[n] y = com.microsoft.FusedConv<activation = "Elu">(u, k)',
            r"'n' \(com.microsoft.FusedConv\) has the activation 'Elu' with 0 parameters",
        ),
        (
            '[n] y = com.microsoft.FusedConv<activation = "LeakyRelu">(u, k)',
            r"'n' .* has the activation 'LeakyRelu' with 0 parameters",
        ),
        (
            "[n] a, y = com.microsoft.SkipLayerNormalization(x, x, g)",
            r"'n' \(SkipLayerNormalization\): its outputs for training",
        ),
        ("[n] a, y = LayerNormalization(x, g)", r"'n' \(LayerNormalization\): its outputs for training"),
        (
            "[n] y = com.microsoft.LayerNormalization(x, g)",
            "'com.microsoft.LayerNormalization', which ONNX Runtime",
        ),
        ('[n] y = com.microsoft.BiasGelu(x, "")', r"'n' \(com.microsoft.BiasGelu\) has no input 1"),
    ],
)
def test_what_cannot_be_rewritten_is_refused_by_node(tmp_path: Path, body: str, match: str) -> None:
    path = tmp_path / "m.onnx"
    _save(path, body, "float[2,6,8] x, float u", opset=13)
    proto = onnx.load(path)
    proto.graph.input[1].type.tensor_type.ClearField("shape")
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match=match) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_other_operators_of_the_domain_are_left(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    _save(path, "y = com.microsoft.BiasSoftmax<axis = 1, is_inner_broadcast = 1>(x, m)", "float[2,6,8] x")
    assert [node.domain for node in read(path).graph] == [CONTRIBUTED]


def test_dtype_of_scalar_constants(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    _save(path, "y = com.microsoft.FusedMatMul<alpha = 0.25>(x, w)", "float[2,6,8] x", "float[2,6,5] y")
    model = read(path)
    (alpha,) = [v.const_value for name, v in model.graph.initializers.items() if name.endswith("alpha")]
    assert alpha is not None
    assert alpha.numpy().dtype == np.float32


@pytest.mark.parametrize("domain", ["", "com.microsoft."])
def test_inside_a_qdq_model(domain: str, tmp_path: Path) -> None:
    """The pairs around the operator are read; the tensor between Add and Gelu gets none."""
    scales = "<float s = {0.01}, float t = {0.02}, uint16 z = {32768}>"
    body = f"""q = {domain}QuantizeLinear(x, s, z) d = {domain}DequantizeLinear(q, s, z)
        r = com.microsoft.BiasGelu(d, b) f = com.microsoft.FusedMatMul<transB = 1>(r, d)
        p = {domain}QuantizeLinear(f, t, z) y = {domain}DequantizeLinear(p, t, z)"""
    path = tmp_path / "m.onnx"
    text = f"{HEAD.format(opset=21)} g (float[2,6,8] x) => (float[2,6,6] y) {scales} {{ {body} }}"
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS["b"], "b"))
    path.write_bytes(proto.SerializeToString())
    model = read(path)
    feed = random_inputs(model)
    assert sqnr_db(_run_file(path, feed)["y"], run(model, feed)["y"]) >= FLOOR_DB
    inverted, plan = invert(model)
    assert [node.op_type for node in inverted.graph] == ["Add", "Gelu", "Transpose", "MatMul"]
    assert {name for name, choice in plan.tensors.items() if choice.storage.dtype.is_quantized} == {"x", "y"}


@pytest.mark.parametrize("target", ["tensorrt:sm89", "qnn-htp:sm8550", "xnnpack"])
def test_other_operators_are_named_with_their_domain(target: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    body = "[n] y = com.microsoft.BiasSoftmax<axis = 1, is_inner_broadcast = 1>(x, m)"
    _save(path, body, "float[2,6,8] x", "float[2,6,8] y")
    match = rf"node 'n' uses com.microsoft.BiasSoftmax, .* which {target} does not have; export"
    with pytest.raises(InputError, match=match):
        prepare(path, FitOptions(target=target), calibration="random")
    codes = [finding.code for finding in check_file(path, open_target(target, {}))]
    assert "Q108" in codes
    assert not {"Q101", "Q432"} & set(codes)
    prepare(path, FitOptions(target="ort-cpu"), calibration="random")


def test_layer_norm_that_onnx_runtime_fused_below_opset_17(tmp_path: Path) -> None:
    """Its optimizer writes LayerNormalization into the ONNX domain of opset 13, which does not define it."""
    body = """mean = ReduceMean<axes = [-1]>(x) c = Sub(x, mean) p = Pow(c, two) var = ReduceMean<axes = [-1]>(p)
        e = Add(var, eps) d = Sqrt(e) n = Div(c, d) s = Mul(n, g) y = Add(s, beta)"""
    path, fused = tmp_path / "m.onnx", tmp_path / "fused.onnx"
    proto = _save(path, body, "float[2,6,8] x", "float[2,6,8] y", opset=13)
    for name, number in (("two", 2.0), ("eps", 1e-6)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(number, np.float32), name))
    path.write_bytes(proto.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(fused)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    written = onnx.load(fused)
    assert [(node.domain, node.op_type) for node in written.graph.node] == [("", "LayerNormalization")]
    assert {entry.domain: entry.version for entry in written.opset_import}[""] == 13
    model = read(fused)
    assert [(node.domain, node.op_type) for node in model.graph] == [("", "LayerNormalization")]
    feed = random_inputs(model)
    assert sqnr_db(_run_file(path, feed)["y"], run(model, feed)["y"]) >= FLOOR_DB
    assert check_file(fused, open_target("ort-cpu", {})) == ()


def test_model_that_onnx_runtime_optimized_is_fitted(tmp_path: Path) -> None:
    """What its own optimizer writes for a shipped ViT is as good as the file that it was given."""
    shipped = zoo.load("vit_digits")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "m.onnx")
    onnxruntime.InferenceSession(str(shipped.model_path), options, providers=["CPUExecutionProvider"])
    written = {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node if node.domain == CONTRIBUTED}
    assert {"Gelu", "BiasGelu", "FusedMatMul"} & written
    assert written <= set(REWRITES)
    images = {"images": shipped.calib()["images"][:2]}
    result = dovetail.fit(tmp_path / "m.onnx", target="ort-cpu", calibration=images, output=tmp_path / "run")
    assert result.verdicts["normalized"].status is Status.PASS
    assert check_file(tmp_path / "m.onnx", open_target("qnn-htp:sm8550", {})) == ()
