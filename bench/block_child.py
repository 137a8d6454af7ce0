"""The measured process of ``bench.block``: plan a large transformer and write it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from bench.child import run_request
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.float_graph import cut, rewrite
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.plan.requested_weights import RequestedWeights
from dovetail.targets import open_target

WIDTH, TOKENS = 1024, 16


def transformer(layers: int) -> ir.Model:
    """Linear layers of a transformer without attention: 12 x width^2 parameters each."""
    random = np.random.default_rng(0)
    x = ir.Value(name="x", shape=ir.Shape((TOKENS, WIDTH)), type=ir.TensorType(ir.DataType.FLOAT))
    nodes: list[ir.Node] = []
    initializers: list[ir.Value] = []

    def constant(name: str, shape: tuple[int, ...], scale: float) -> ir.Value:
        array = random.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        tensor = ir.Tensor(array, name=name)
        value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=tensor.shape)
        initializers.append(value)
        return value

    def apply(op: str, name: str, *inputs: ir.Value) -> ir.Value:
        node = ir.node(op, list(inputs), name=name)
        node.outputs[0].name = f"{name}_out"
        nodes.append(node)
        return node.outputs[0]

    def linear(name: str, value: ir.Value, rows: int, columns: int) -> ir.Value:
        product = apply("MatMul", f"{name}/MatMul", value, constant(f"{name}.w", (rows, columns), rows**-0.5))
        return apply("Add", f"{name}/Add", product, constant(f"{name}.b", (columns,), 0.1))

    value = x
    for index in range(layers):
        for name in ("q", "k", "v", "proj"):
            value = linear(f"{index}.{name}", value, WIDTH, WIDTH)
        hidden = apply("Gelu", f"{index}/Gelu", linear(f"{index}.fc1", value, WIDTH, 4 * WIDTH))
        value = apply("Add", f"{index}/Add", value, linear(f"{index}.fc2", hidden, 4 * WIDTH, WIDTH))
    value.shape, value.type = ir.Shape((TOKENS, WIDTH)), ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([x], [value], nodes=nodes, initializers=initializers, opset_imports={"": 21}, name="g")
    model = ir.Model(graph, ir_version=10)
    infer_shapes(model)
    return model


def child(request: dict[str, Any]) -> Mapping[str, Any]:
    """Plan in one precision, and write the model; the seconds are CPU time without building the float model."""
    target = open_target("ort-cpu")
    precision, folder = target.table.precisions[request["precision"]], Path(request["folder"])
    model = transformer(request["layers"])
    sizes = [value.const_value.size for value in model.graph.initializers.values() if value.const_value is not None]
    start = time.process_time()
    head = cut(normalize(model)[0], target).head
    rewritten, _ = rewrite(head, target, model, RequestedWeights(precision))
    samples = {"x": np.random.default_rng(1).standard_normal((1, TOKENS, WIDTH)).astype(np.float32)}
    names, data = observed(rewritten, target.table), open_data(samples, input_specs(rewritten))
    stats = collect(rewritten, names, data, workdir=folder, histograms=False)
    plan = make_plan(rewritten, target.table, stats, Request(precision, request["method"]))
    output = folder / request["precision"]
    output.mkdir(exist_ok=True)
    artifacts = target.backend.emit(rewritten, plan, output)
    seconds = time.process_time() - start
    written = sum(artifact.path.stat().st_size for artifact in artifacts)
    return {"parameters": sum(sizes), "float_bytes": 4 * sum(sizes), "file_bytes": written, "seconds": seconds}


if __name__ == "__main__":
    run_request(child)
