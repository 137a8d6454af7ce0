"""Every block-quantized layer of a shipped ViT alone, on the HTP emulator and in the simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail import zoo
from dovetail.backend import MODEL
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.encoding import DType
from dovetail.float_graph import cut, rewrite
from dovetail.model.edit import constant_of, shape_of
from dovetail.model.read import read
from dovetail.model.session import Mode
from dovetail.numerics.metrics import sqnr_db
from dovetail.op_support import W4A16_LPBQ
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.plan.requested_weights import RequestedWeights
from dovetail.stats import Stats
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.verify.run import SessionRun


def layers_alone(size: int, folder: Path) -> dict[str, float]:
    """The agreement of emulator and simulation in dB, by layer; each is fed what the simulation has there."""
    shipped, target = zoo.load("vit_digits"), open_target("qnn-htp:sm8550")
    precision = replace(W4A16_LPBQ, weight=replace(W4A16_LPBQ.weight, block_size=size))
    original = read(shipped.model_path)
    model, _ = rewrite(cut(normalize(original)[0], target).head, target, original, RequestedWeights(precision))
    data = shipped.calib()
    request = Request(precision)
    folder.mkdir(parents=True)
    plan = make_plan(model, target.table, _statistics(model, target, data, folder), request)
    edges = [edge for edge, choice in plan.edges.items() if choice.storage.dtype is DType.S4]
    nodes = {node.name: node for node in model.graph}
    emitted = target.backend.emit(model, plan, folder)
    inputs = {edge: f"{nodes[edge.node].inputs[0].name}" for edge in edges}
    tensors = _simulated(emitted[0].path, tuple(dict.fromkeys(inputs.values())), data, folder)
    figures = {}
    for index, edge in enumerate(edges):
        alone, sample = _alone(nodes[edge.node]), {"x": tensors[inputs[edge]]}
        work = folder / f"{index}"
        work.mkdir()
        layer_plan = make_plan(alone, target.table, _statistics(alone, target, {"x": sample["x"][None]}, work), request)
        artifacts = target.backend.emit(alone, layer_plan, work)
        compiled = target.backend.compile(artifacts, work)
        simulation = SessionRun(next(a.path for a in artifacts if a.name == MODEL), Mode.EXACT, work)
        (expected,), (emulated,) = list(simulation([sample])), list(target.backend.runner.run(compiled, [sample]))
        figures[edge.node] = sqnr_db(expected["y"], emulated["y"])
    return figures


def _statistics(model: ir.Model, target: Target, data: dict[str, np.ndarray], folder: Path) -> Stats:
    names, source = observed(model, target.table), open_data(data, input_specs(model))
    return collect(model, names, source, workdir=folder, histograms=False)


def _simulated(
    emitted: Path, names: tuple[str, ...], data: dict[str, np.ndarray], folder: Path
) -> dict[str, np.ndarray]:
    """The values of tensors in the simulation of the first sample."""
    model = ir.load(emitted)
    values = {value.name: value for node in model.graph for value in node.outputs}
    for name in names:
        model.graph.outputs.append(values[f"{name}__dq"] if f"{name}__dq" in values else values[name])
    infer_shapes(model)
    path = folder / "with_outputs.onnx"
    ir.save(model, path)
    (outputs,) = list(SessionRun(path, Mode.EXACT, folder)([{name: array[:1] for name, array in data.items()}]))
    return {name: outputs[f"{name}__dq"] if f"{name}__dq" in outputs else outputs[name] for name in names}


def _alone(node: ir.Node) -> ir.Model:
    """A model of one layer, with its constants."""
    shapes = [shape_of(value) for value in (node.inputs[0], node.outputs[0])]
    x, y = (
        ir.Value(name=name, shape=ir.Shape(shape or ()), type=ir.TensorType(ir.DataType.FLOAT))
        for name, shape in zip(("x", "y"), shapes, strict=True)
    )
    constants = []
    for name, value in zip(("w", "b"), node.inputs[1:], strict=False):
        tensor = ir.Tensor(np.array(constant_of(value)), name=name)
        constants.append(ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=tensor.shape))
    copy = ir.Node("", node.op_type, [x, *constants], outputs=[y], name="layer")
    graph = ir.Graph([x], [y], nodes=[copy], initializers=constants, opset_imports={"": 21}, name="g")
    return ir.Model(graph, ir_version=10)
