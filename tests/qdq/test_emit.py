"""Emission of a QDQ graph: its outputs, structure, names and bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.edge import Edge
from dovetail.encoding import DType, Encoding, Granularity, QParams
from dovetail.errors import InputError
from dovetail.model.write import serialized, write
from dovetail.numerics.affine import dequantize, fake_quantize, quantize
from dovetail.numerics.block import scale_shape
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.quantized_values import quantized_values
from dovetail.storage import IN_FLOAT32, Choice, FloatStorage, Plan, Reason
from tests.equality import Array, model_from, normal
from tests.qdq.round_trip import assert_bit_equal, check_emitted, plan_of, run_both_ways
from tests.qdq.shipped import images, planned

A8 = QParams(Encoding(DType.U8), np.float32(0.05), np.int32(120))
B8 = QParams(Encoding(DType.U8), np.float32(0.11), np.int32(7))
A16 = QParams(Encoding(DType.U16), np.float32(0.001), np.int32(33000))
W8 = QParams(Encoding(DType.S8, True, Granularity.AXIS), np.linspace(0.01, 0.04, 4), np.zeros(4), axis=1)
B32 = QParams(Encoding(DType.S32, True, Granularity.AXIS), np.linspace(1e-4, 2e-4, 4), np.zeros(4), axis=0)
WEIGHT, BIAS = normal(6, 4), normal(4, seed=1)
X = normal(2, 6, seed=2)


def _linear() -> ir.Model:
    text = "g (float[2,6] x) => (float[2,4] y) { [mm] h = MatMul(x, W) [add] y = Add(h, b) }"
    return model_from(text, W=WEIGHT, b=BIAS)


def _run(emitted: ir.Model, feed: Any) -> dict[str, Array]:
    check_emitted(emitted)
    exact, plain = run_both_ways(serialized(emitted), feed)
    for name, array in exact.items():
        assert array.tobytes() == plain[name].tobytes()
    return exact


def _ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_outputs_equal_fake_quantization_by_hand() -> None:
    plan = plan_of({"x": A8, "h": A16, "y": B8}, {Edge("mm", 1): W8, Edge("add", 1): B32})
    output = _run(emit_qdq(_linear(), plan), {"x": X})["y"]
    by_hand = model_from(
        "g (float[2,6] x) => (float[2,4] h) { h = MatMul(x, W) }", W=dequantize(quantize(WEIGHT, W8), W8)
    )
    (h, _) = run_both_ways(serialized(by_hand), {"x": fake_quantize(X, A8)})
    sum_ = fake_quantize(h["h"], A16) + fake_quantize(BIAS, B32)
    np.testing.assert_array_equal(output, fake_quantize(sum_, B8))


def test_model_is_not_changed() -> None:
    model = _linear()
    before = serialized(model)
    emit_qdq(model, plan_of({"x": A8, "y": B8}, {Edge("mm", 1): W8}, quantized_io=True))
    assert serialized(model) == before


def test_constants_without_consumers_are_removed() -> None:
    emitted = emit_qdq(_linear(), plan_of({"x": A8}, {Edge("mm", 1): W8}))
    assert "W" not in emitted.graph.initializers
    assert emitted.graph.initializers["W__q"].dtype is ir.DataType.INT8
    assert "b" in emitted.graph.initializers


def test_integer_io() -> None:
    float_io = plan_of({"x": A8, "y": B8})
    emitted = emit_qdq(_linear(), replace(float_io, quantized_io=True))
    assert [(v.name, v.dtype) for v in (*emitted.graph.inputs, *emitted.graph.outputs)] == [
        ("x", ir.DataType.UINT8),
        ("y", ir.DataType.UINT8),
    ]
    expected = _run(emit_qdq(_linear(), float_io), {"x": X})["y"]
    output = _run(emitted, {"x": quantize(X, A8)})["y"]
    np.testing.assert_array_equal(dequantize(output, B8), expected)
    assert _ops(emitted) == ["DequantizeLinear", "MatMul", "Add", "QuantizeLinear"]


def test_integer_output_that_is_also_read() -> None:
    model = model_from("g (float[4] x) => (float[4] y, float[4] w) { y = Relu(x) [n] w = Neg(y) }")
    outputs = _run(emit_qdq(model, plan_of({"y": A8}, quantized_io=True)), {"x": X[0, :4]})
    np.testing.assert_array_equal(outputs["w"], -dequantize(outputs["y"], A8))


def test_equal_edges_of_one_value_share_one_qdq_pair() -> None:
    text = """g (float[4] x) => (float[4] y) {
        [r] r = Relu(x) [a] u = Neg(r) [b] v = Abs(r) [c] w = Exp(r) [o] y = Sum(u, v, w) }"""
    edges = {Edge("a", 0): A16, Edge("b", 0): A16, Edge("c", 0): B8}
    for tensors, pairs in (({}, 2), ({"r": A8}, 3)):
        emitted = emit_qdq(model_from(text), plan_of(tensors, edges))
        check_emitted(emitted)
        assert _ops(emitted).count("QuantizeLinear") == pairs
        assert _ops(emitted).count("DequantizeLinear") == pairs


def test_every_consumer_of_a_constant_has_its_own_quantized_constant() -> None:
    text = "g (float[6,4] x) => (float[6,4] y) { [a] u = Mul(x, W) [b] v = Add(u, W) [c] y = Sub(v, W) }"
    edges = {Edge("a", 1): W8, Edge("b", 1): W8, Edge("c", 1): W8}
    other = quantize(WEIGHT, W8) // 2
    plan = plan_of({}, edges, stored={Edge("c", 1): other})
    emitted = emit_qdq(model_from(text, W=WEIGHT), plan)
    assert _ops(emitted).count("DequantizeLinear") == 3
    x = normal(6, 4, seed=5)
    output = _run(emitted, {"x": x})["y"]
    real = fake_quantize(WEIGHT, W8)
    np.testing.assert_array_equal(output, x * real + real - dequantize(other, W8))


def test_names_in_use_are_not_reused() -> None:
    text = """g (float[4] x, float[4] x__q) => (float[4] y, float[4] y__raw) {
        [x__dq] x__dq = Add(x, x__q) [y] y = Neg(x__dq) [z] y__raw = Abs(x) }"""
    emitted = emit_qdq(model_from(text), plan_of({"x": A8, "y": B8}))
    assert [v.name for v in emitted.graph.outputs] == ["y", "y__raw"]
    _run(emitted, {"x": X[0, :4], "x__q": X[1, :4]})
    stored = {s.tensor: s.name for s in quantized_values(emitted, plan_of({"x": A8, "y": B8}))}
    assert stored == {"x": "x__q.1", "y": "y__q"}


def test_outputs_that_are_inputs_or_constants() -> None:
    model = model_from("g (float[4] x) => (float[4] x, float[2] c, float[4] y) { y = Relu(x) }", c=normal(2))
    emitted = emit_qdq(model, plan_of({"x": A8}))
    outputs = _run(emitted, {"x": X[0, :4]})
    np.testing.assert_array_equal(outputs["x"], X[0, :4])
    np.testing.assert_array_equal(outputs["c"], normal(2))
    np.testing.assert_array_equal(outputs["y"], np.maximum(fake_quantize(X[0, :4], A8), 0))


def test_value_without_consumers_is_not_quantized() -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { y, mean, dev = LayerNormalization(x, one) }"
    plan = plan_of({"y": A8, "mean": A8})
    emitted = emit_qdq(model_from(text, one=np.ones(4, np.float32)), plan)
    assert _ops(emitted) == ["LayerNormalization", "QuantizeLinear", "DequantizeLinear"]
    assert [stored.tensor for stored in quantized_values(emitted, plan)] == ["y"]


@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
def test_every_quantized_value_of_a_plan_is_in_the_emitted_graph(precision: str) -> None:
    for quantized_io in (False, True):
        model, plan = planned(precision, quantized_io)
        emitted = emit_qdq(model, plan)
        check_emitted(emitted)
        choices = (*plan.tensors.values(), *plan.edges.values())
        planned_qparams = [choice.storage for choice in choices if isinstance(choice.storage, QParams)]
        emitted_values = list(quantized_values(emitted, plan))
        assert [stored.params for stored in emitted_values] == planned_qparams
        dtypes = {v.name: v.dtype for v in (*emitted.graph.inputs, *emitted.graph.initializers.values())}
        dtypes |= {v.name: v.dtype for node in emitted.graph for v in node.outputs}
        for stored in emitted_values:
            assert str(dtypes[stored.name]).lower() == stored.params.dtype


def test_a_tensor_kept_in_float16_has_no_qdq_pair() -> None:
    """The target converts the emitted graph to float16, not the emitter."""
    in_float = Plan(
        "",
        "",
        {"h": Choice(FloatStorage(DType.F16), Reason.PINNED)},
        {Edge("add", 0): Choice(FloatStorage(DType.F16), Reason.PINNED)},
    )
    assert {node.op_type for node in emit_qdq(_linear(), in_float).graph} == {node.op_type for node in _linear().graph}


REFUSED: dict[str, tuple[Plan, str]] = {
    "unknown tensor": (plan_of({"nope": A8}), "tensor 'nope'"),
    "unknown edge": (plan_of({}, {Edge("mm", 7): A8}), "edge 'mm:7'"),
    "int32 tensor": (plan_of({"h": replace(B32, axis=1)}), "tensor 'h': only constants can be int32"),
    "scale of a wrong length": (plan_of({}, {Edge("mm", 1): replace(W8, axis=0)}), "edge 'mm:1': the per-axis scale"),
    "integers of a wrong shape": (
        plan_of({}, {Edge("mm", 1): W8}, stored={Edge("mm", 1): np.zeros((2, 2), np.int8)}),
        "edge 'mm:1': the plan's integers are int8 of shape",
    ),
    "integers of a wrong type": (
        plan_of({}, {Edge("mm", 1): W8}, stored={Edge("mm", 1): np.zeros((6, 4), np.uint8)}),
        "edge 'mm:1': the plan's integers are uint8 of shape",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_plan_that_does_not_fit_the_graph(case: str) -> None:
    plan, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        emit_qdq(_linear(), plan)


def test_float_edge_of_a_quantized_tensor_reads_the_dequantized_value() -> None:
    plan = Plan("", "", {"h": Choice(A8, Reason.PINNED)}, {Edge("add", 0): Choice(IN_FLOAT32, Reason.PINNED)})
    assert _ops(emit_qdq(_linear(), plan)) == ["MatMul", "QuantizeLinear", "DequantizeLinear", "Add"]


INTEGERS = [DType.U4, DType.S4, DType.U8, DType.S8, DType.U16, DType.S16, DType.S32, DType.F8E4M3]


@st.composite
def constants(draw: st.DrawFn) -> tuple[Array, QParams]:
    """A constant of rank 2 and its qparams."""
    shape = (draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    dtype = draw(st.sampled_from(INTEGERS))
    granularity = draw(st.sampled_from([Granularity.TENSOR, Granularity.AXIS, Granularity.BLOCK]))
    axis = None if granularity is Granularity.TENSOR else draw(st.integers(0, 1))
    block = draw(st.integers(1, 4)) if granularity is Granularity.BLOCK else 0
    encoding = Encoding(dtype, granularity=granularity, block_size=block)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shape_of_scale = scale_shape(shape, encoding, axis)
    scale = rng.uniform(0.01, 0.1, shape_of_scale).astype(np.float32)
    no_zero_point = dtype in (DType.S32, DType.F8E4M3)
    grid = DType.S8.grid if no_zero_point else dtype.grid
    zero_point = np.zeros(shape_of_scale) if no_zero_point else rng.integers(grid.low, grid.high, shape_of_scale)
    return rng.normal(size=shape).astype(np.float32), QParams(encoding, scale, zero_point, axis)


@settings(max_examples=80, deadline=None)
@given(case=constants())
def test_any_constant_is_quantized_in_its_encoding(case: tuple[Array, QParams]) -> None:
    array, params = case
    rows, columns = array.shape
    model = model_from(f"g (float[{rows},{columns}] x) => (float[{rows},{columns}] y) {{ [a] y = Add(x, W) }}", W=array)
    emitted = emit_qdq(model, plan_of({}, {Edge("a", 1): params}))
    check_emitted(emitted)
    assert emitted.graph.initializers["W__q"].const_value is not None
    (exact, _) = run_both_ways(serialized(emitted), {"x": np.zeros_like(array)})
    np.testing.assert_array_equal(exact["y"], fake_quantize(array, params))


def test_4_bit_constants_are_packed() -> None:
    params = QParams(Encoding(DType.S4, True), np.float32(0.3), np.int32(0))
    emitted = emit_qdq(_linear(), plan_of({}, {Edge("mm", 1): params}))
    tensor = next(t for t in ir.to_proto(emitted).graph.initializer if t.name == "W__q")
    assert tensor.data_type == onnx.TensorProto.INT4
    assert len(tensor.raw_data) == 12
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor).astype(ml_dtypes.int4), quantize(WEIGHT, params))


def test_same_bytes_twice_and_in_every_process(tmp_path: Path) -> None:
    model, plan = planned("w8a8")
    paths = [write(emit_qdq(model, plan), tmp_path / name)[0] for name in ("one.onnx", "two.onnx")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    script = """import sys, hashlib
from pathlib import Path
from dovetail.model.read import read
from dovetail.model.write import write
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.invert import invert
path = write(emit_qdq(*invert(read(sys.argv[1]))), Path(sys.argv[2]))[0]
print(hashlib.sha256(path.read_bytes()).hexdigest())"""
    hashes = set()
    for seed in ("1", "2"):
        command = [sys.executable, "-c", script, str(paths[0]), str(tmp_path / f"seed{seed}.onnx")]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        hashes.add(done.stdout.strip())
    assert len(hashes) == 1
    last = (tmp_path / "seed1.onnx").read_bytes()
    assert hashlib.sha256(last).hexdigest() in hashes
    assert_bit_equal(paths[0].read_bytes(), last, images(1)[0])
