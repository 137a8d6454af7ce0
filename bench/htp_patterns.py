"""``python -m bench.htp_patterns``: what the ways to write a layer cost on HTP, by the vendor's estimate for SoC 52.

QDQ graphs in w8a16, compiled as they are: two linear layers as MatMul, Gemm and Conv of 1 x 1, and an attention block
with what exporters leave in it, on graph inputs and behind linear layers. With ``--fit`` the linear layers in float
are fitted instead.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import dovetail
from dovetail.backend import Artifact
from dovetail.targets import open_target
from dovetail.targets.qnn_htp.compile import compile_model
from dovetail.targets.qnn_htp.options import HtpOptions

SOC, OPTIONS = "qnn-htp:soc52", {"vtcm_mb": "8"}
# Windows, tokens, channels, hidden channels.
SIZES = ((1, 256, 192, 768), (4, 257, 384, 1536))
LINEAR = ("matmul, Q/DQ, add", "matmul, add", "gemm", "conv on [N,C,L,1]", "conv on [N,C,1,L]")
MIDDLE = np.uint16(32768)
ATTENTION = ("plain", "mask of zeros", "nan guard", "scale on scores", "scale on q and k")
BEHIND_LAYERS = ("plain", "scale on scores", "scale on q", "scale on q and k", "int16 after uint16", "int16 alone")
# Heads and tokens of attention after linear layers.
BLOCKS = ((3, 197), (6, 257), (12, 577))


class Graph:
    """A graph under construction; ``quantized``: with Q/DQ pairs, and weights and biases as integers."""

    def __init__(self, quantized: bool) -> None:
        self.quantized = quantized
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name=f"{op_type}_{name}", **attributes))
        return name

    def stored(self, value: str, scale: float = 0.0002, zero_point: Any = MIDDLE) -> str:
        """The value after a Q/DQ pair, if the graph is quantized."""
        if not self.quantized:
            return value
        params = (self.constant(np.float32(scale)), self.constant(zero_point))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", value, *params), *params)

    def integers(self, array: Any, scale: float, axis: int | None = None) -> str:
        """A constant that is stored as these integers; a float one if the graph is not quantized."""
        array = np.asarray(array)
        if not self.quantized:
            return self.constant(array.astype(np.float32) * np.float32(scale))
        size = () if axis is None else (array.shape[axis],)
        params = (self.constant(np.full(size, scale, np.float32)), self.constant(np.zeros(size, array.dtype)))
        return self.op("DequantizeLinear", self.constant(array), *params, **({} if axis is None else {"axis": axis}))

    def linear(self, form: str, value: str, shape: tuple[int, int, int], outputs: int) -> str:
        windows, tokens, inputs = shape
        weight = self.random.integers(-100, 100, (outputs, inputs)).astype(np.int8)
        if form == LINEAR[0]:
            product = self.stored(self.op("MatMul", value, self.integers(weight.T.copy(), 0.001, 1)))
            bias = self.integers(self.random.integers(0, 1000, outputs).astype(np.uint16), 1e-4)
            return self.stored(self.op("Add", product, bias))
        bias = self.integers(self.random.integers(-1000, 1000, outputs).astype(np.int32), 2e-7, 0)
        if form == LINEAR[1]:
            product = self.op("MatMul", value, self.integers(weight.T.copy(), 0.001, 1))
            return self.stored(self.op("Add", product, bias))
        if form == "gemm":
            rows = self.stored(self.op("Reshape", value, self.constant([windows * tokens, inputs])))
            rows = self.stored(self.op("Gemm", rows, self.integers(weight, 0.001, 0), bias, transB=1))
            return self.stored(self.op("Reshape", rows, self.constant([windows, tokens, outputs])))
        image = [tokens, 1] if form.endswith("L,1]") else [1, tokens]
        value = self.stored(self.op("Transpose", value, perm=[0, 2, 1]))
        value = self.stored(self.op("Reshape", value, self.constant([windows, inputs, *image])))
        value = self.stored(self.op("Conv", value, self.integers(weight[:, :, None, None], 0.001, 0), bias))
        value = self.stored(self.op("Reshape", value, self.constant([windows, outputs, tokens])))
        return self.stored(self.op("Transpose", value, perm=[0, 2, 1]))

    def model(self, inputs: dict[str, Sequence[int]], output: Sequence[int]) -> onnx.ModelProto:
        self.nodes[-1].output[0] = "y"
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, output)
        graph = helper.make_graph(self.nodes, "graph", values, [result], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.htp_patterns", description=__doc__.partition("\n")[0])
    parser.add_argument("--fit", action="store_true", help="fit the linear layers, instead of compiling QDQ graphs")
    fits = parser.parse_args(arguments).fit
    for size in SIZES:
        windows, tokens, channels, hidden = size
        print(f"two linear layers on [{windows}, {tokens}, {channels}], {hidden} between: us, relative to Gemm")
        models = {form: linear_layers(form, size, not fits) for form in LINEAR[fits:]}
        _table({form: (_fitted if fits else _compiled)(model) for form, model in models.items()}, "gemm")
    for heads, tokens in ((3, 197), (24, 257)) if not fits else ():
        print(f"attention of {heads} heads, {tokens} tokens: us, relative to the plain block")
        _table({form: _compiled(attention(form, heads, tokens)) for form in ATTENTION}, "plain")
    for heads, tokens in BLOCKS if not fits else ():
        print(f"attention of {heads} heads, {tokens} tokens after linear layers: us, relative to the plain block")
        _table({form: _compiled(attention_block(form, heads, tokens)) for form in BEHIND_LAYERS}, "plain")


def linear_layers(form: str, size: tuple[int, int, int, int], quantized: bool) -> onnx.ModelProto:
    """Two linear layers with an activation between them and a residual."""
    windows, tokens, channels, hidden = size
    graph = Graph(quantized)
    x = graph.stored("x")
    value = graph.linear(form, x, (windows, tokens, channels), hidden)
    value = graph.linear(form, graph.stored(graph.op("Relu", value)), (windows, tokens, hidden), channels)
    graph.stored(graph.op("Add", value, x))
    shape = (windows, tokens, channels)
    return graph.model({"x": shape}, shape)


def attention(form: str, heads: int, tokens: int, channels: int = 64) -> onnx.ModelProto:
    """An attention block, with one of the things that exporters leave in it."""
    graph = Graph(quantized=True)
    q, k, v = (graph.stored(name) for name in "qkv")
    if form == "scale on q and k":
        q, k = (graph.stored(graph.op("Mul", value, graph.integers(np.uint16(65535), 5e-6))) for value in (q, k))
    narrow = {"scale": 0.05, "zero_point": np.uint8(128)}  # the second operands of the MatMuls
    scores = graph.stored(graph.op("MatMul", q, graph.stored(k, **narrow)), 0.001)
    if form == "scale on scores":
        scores = graph.stored(graph.op("Mul", scores, graph.integers(np.uint16(65535), 2e-6)))
    if form == "mask of zeros":
        scores = graph.stored(graph.op("Add", scores, graph.integers(np.zeros((1, tokens, tokens), np.uint16), 1e-4)))
    probabilities = {"scale": 2**-16, "zero_point": np.uint16(0)}
    weights = graph.stored(graph.op("Softmax", scores), **probabilities)
    if form == "nan guard":
        selected = graph.op("Where", graph.op("IsNaN", weights), graph.integers(np.uint16(0), 2**-16), weights)
        weights = graph.stored(selected, **probabilities)
    graph.stored(graph.op("MatMul", weights, graph.stored(v, **narrow)))
    rows, columns = (heads, tokens, channels), (heads, channels, tokens)
    return graph.model({"q": rows, "k": columns, "v": rows}, rows)


def attention_block(form: str, heads: int, tokens: int, channels: int = 64) -> onnx.ModelProto:
    """Attention after the three linear layers; the second operands of its MatMuls are uint8 unless the form says else.

    ``int16 alone``: the Transposes before them write int16, instead of uint16 with a second Q/DQ pair after it.
    """
    graph, width = Graph(quantized=True), heads * channels
    x = graph.stored("x")
    q, k, v = (_projection(graph, name, x, form, (heads, tokens, channels)) for name in "qkv")
    scores = graph.stored(graph.op("MatMul", q, k), 0.001)
    if form == "scale on scores":
        scores = graph.stored(graph.op("Mul", scores, graph.integers(np.uint16(65535), 2e-6)))
    weights = graph.stored(graph.op("Softmax", scores), 2**-16, np.uint16(0))
    rows = graph.stored(graph.op("Transpose", graph.stored(graph.op("MatMul", weights, v)), perm=[1, 0, 2]))
    graph.stored(graph.op("Reshape", rows, graph.constant([tokens, width])))
    return graph.model({"x": (tokens, width)}, (tokens, width))


def _projection(graph: Graph, name: str, x: str, form: str, shape: tuple[int, int, int]) -> str:
    """Q, K or V by heads: a Gemm, a Reshape and a Transpose."""
    heads, tokens, channels = shape
    width = heads * channels
    weight = graph.integers(graph.random.integers(-100, 100, (width, width)).astype(np.int8), 0.001, 0)
    bias = graph.integers(graph.random.integers(-1000, 1000, width).astype(np.int32), 2e-7, 0)
    value = graph.stored(graph.op("Gemm", x, weight, bias, transB=1))
    value = graph.stored(graph.op("Reshape", value, graph.constant([tokens, heads, channels])))
    value = graph.op("Transpose", value, perm=[1, 2, 0] if name == "k" else [1, 0, 2])
    if form == "int16 alone" and name != "q":
        return graph.stored(value, zero_point=np.int16(0))
    value = graph.stored(value)
    if form in ("scale on q and k", "scale on q") and name in form.removeprefix("scale on ").split(" and "):
        value = graph.stored(graph.op("Mul", value, graph.integers(np.uint16(65535), 5e-6)), 0.0001)
    if name == "q":
        return value
    if form == "int16 after uint16":
        return graph.stored(value, zero_point=np.int16(0))
    return graph.stored(value, 0.05, np.uint8(128))


def _compiled(model: onnx.ModelProto) -> float:
    """The estimate of a graph as it is."""
    options = open_target(SOC, OPTIONS).facts
    assert isinstance(options, HtpOptions)
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        estimate = compile_model(options, (Artifact("model", path),), Path(folder)).estimate
    return math.nan if estimate is None or estimate.ops_without_cost else float(estimate.mid_us)


def _fitted(model: onnx.ModelProto) -> float:
    """The estimate of the fitted graph."""
    shape = [dimension.dim_value for dimension in model.graph.input[0].type.tensor_type.shape.dim]
    data = {"x": np.random.default_rng(1).standard_normal((4, *shape)).astype(np.float32)}
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        result = dovetail.fit(
            path, target=SOC, option=OPTIONS, precision="w8a16", calibration=data, output=Path(folder) / "run",
            baselines="none", emulate=1,
        )  # fmt: skip
    assert not result.failed, result.verdicts
    return float(result.metrics.latency_estimate_us["fitted"].mid_us)


def _table(times_us: dict[str, float], reference: str) -> None:
    for form, time_us in times_us.items():
        print(f"  {form:22}{time_us:7.0f}{time_us / times_us[reference]:8.2f}x")
    print(flush=True)


if __name__ == "__main__":
    main()
