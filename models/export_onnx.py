"""Write a trained model and its data into the zoo folder, then measure the written files with ONNX Runtime."""

from __future__ import annotations

import ast
import importlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from torch import nn

from dovetail import zoo

ZOO_DIR = Path(__file__).resolve().parent.parent / "src" / "dovetail" / "zoo"
OPSET = 18


def fix_seeds(seed: int) -> None:
    """Make a run repeatable: every seed fixed, one thread, deterministic kernels."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def preprocess(images: np.ndarray, mean: np.ndarray, std: np.ndarray) -> torch.Tensor:
    """Normalize images as the zoo loader does: uint8 [N,C,H,W] -> float32 [N,C,H,W]."""
    return torch.from_numpy(zoo.preprocess(images, mean, std))


def write_model(name: str, model: nn.Module, image_shape: tuple[int, int, int], outputs: list[str]) -> None:
    """Export at batch 1 to one ONNX file, with names from the modules and without file paths and stack traces."""
    program = torch.onnx.export(
        model.eval(),
        (torch.zeros(1, *image_shape),),
        dynamo=True,
        opset_version=OPSET,
        input_names=["images"],
        output_names=outputs,
        external_data=False,
        verbose=False,
    )
    if program is None:
        raise RuntimeError(f"the exporter returned no program for {name}")
    exported = program.model
    _name_after_modules(exported)
    _name_constants(exported, set(model.state_dict()))
    _strip_metadata(exported)
    exported.graph.name = name
    path = ZOO_DIR / f"{name}.onnx"
    ir.save(exported, path)
    onnx.checker.check_model(str(path), full_check=True)


def write_data(name: str, **arrays: np.ndarray) -> None:
    """Write the calibration and held-out arrays of a model as one compressed file."""
    np.savez_compressed(ZOO_DIR / f"{name}.npz", **arrays)


def measure(name: str) -> dict[str, float]:
    """Run the written ONNX file over its held-out samples on one thread and return the metric."""
    entry = zoo.load(name)
    module, _, function = entry.metric.partition(":")
    figures: dict[str, float] = getattr(importlib.import_module(module), function)(
        _run(entry), zoo.samples(entry.targets())
    )
    for path in (entry.model_path, entry.data_path):
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")
    print(name, {key: round(value, 4) for key, value in figures.items()})
    return figures


def _run(entry: zoo.ZooModel) -> Iterator[dict[str, np.ndarray]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(entry.model_path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for sample in zoo.samples(entry.eval()):
        yield dict(zip(names, session.run(names, sample), strict=True))


def _name_after_modules(model: ir.Model) -> None:
    """Rename nodes to `module.path/OpType` and their output tensors alike, except the outputs of the graph."""
    graph = model.graph
    seen: Counter[str] = Counter()
    for node in graph:
        scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
        modules = [scope for scope in scopes[:-1] if scope]  # the last scope is the node itself
        if node.op_type == "Conv":  # otherwise it gets the name of the batch norm folded into it
            modules = [str(node.inputs[1].name).removesuffix(".weight")]
        base = f"{modules[-1]}/{node.op_type}" if modules else node.op_type
        seen[base] += 1
        node.name = base if seen[base] == 1 else f"{base}_{seen[base]}"
        for position, value in enumerate(node.outputs):
            if not value.is_graph_output():
                value.name = f"{node.name}_out" if len(node.outputs) == 1 else f"{node.name}_out{position}"


def _name_constants(model: ir.Model, parameters: set[str]) -> None:
    """Name folded constants: weights and biases after their module, all others after the node that consumes them."""
    roles = {("MatMul", 0): "weight", ("MatMul", 1): "weight", ("Conv", 2): "bias"}
    graph = model.graph
    for node in graph:
        for position, value in enumerate(node.inputs):
            if value is None or value.name not in graph.initializers or value.name in parameters:
                continue
            role = roles.get((node.op_type, position))
            name = f"{node.name.rpartition('/')[0]}.{role}" if role else f"{node.name}_const{position}"
            graph.initializers.pop(value.name)
            value.name = name
            graph.register_initializer(value)
            parameters.add(name)


def _strip_metadata(model: ir.Model) -> None:
    graph = model.graph
    model.metadata_props.clear()
    model.doc_string = graph.doc_string = None
    graph.metadata_props.clear()
    values = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    for node in graph:
        node.doc_string = None
        node.metadata_props.clear()
        values.extend(node.outputs)
    for value in values:
        value.doc_string = None
        value.metadata_props.clear()
        if value.const_value is not None:
            value.const_value.doc_string = None
            value.const_value.metadata_props.clear()
