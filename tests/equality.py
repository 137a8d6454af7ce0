"""Small graphs in text form, and the proof that a pass leaves their numbers alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from dovetail.model import origin
from dovetail.pass_record import Pass, PassRecord
from dovetail.passes.infer_shapes import infer_shapes

Array = np.ndarray[Any, np.dtype[Any]]
PASS_FLOOR_DB = 100.0


def model_from(text: str, opset: int = 21, **constants: Array) -> ir.Model:
    """A stamped model with inferred shapes,
    from ``g (float[2] x) => (float[2] y) { ... }``.

    Constants that the text reads but does not write are given as arrays.
    """
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> {text}')
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    model = ir.from_proto(proto)
    for number, node in enumerate(model.graph.all_nodes()):
        node.name = node.name or f"{node.op_type}_{number}"
    origin.stamp(model)
    infer_shapes(model)
    return model


def changed_by(each: Pass, model: ir.Model, floor_db: float = PASS_FLOOR_DB) -> tuple[ir.Model, PassRecord]:
    """A copy of the model after a pass, proved valid, equal to the model and traceable to its names."""
    after = model.clone()
    after.graph.meta.clear()
    record = each(after)
    check_valid(after)
    assert_traceable(after, names_in(model))
    assert_equal(model, after, floor_db)
    return after, record


def check_valid(model: ir.Model) -> None:
    """Refuse a model that the ONNX checker does not take."""
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def names_in(model: ir.Model) -> set[str]:
    """Every tensor name in a model and its subgraphs."""
    names: set[str] = set()
    for graph in model.graphs():
        names.update(value.name or "" for value in (*graph.inputs, *graph.initializers.values()))
        names.update(value.name or "" for node in graph for value in node.outputs)
    return names


def assert_traceable(model: ir.Model, originals: set[str]) -> None:
    """Every value has a name of its own and leads to a name in the original file."""
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [value for node in model.graph for value in node.outputs if value.name != ""]
    names = [value.name for value in values]
    assert all(names)
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
    for value in values:
        for name in origin.origin_of(value).names:
            assert name in originals, f"{value.name} leads to {name}"


def assert_equal(before: ir.Model, after: ir.Model, floor_db: float = PASS_FLOOR_DB, seed: int = 0) -> None:
    """Both models give the same outputs, by name, on the same random inputs."""
    inputs = random_inputs(before, seed)
    expected, found = run(before, inputs), run(after, inputs)
    assert list(expected) == list(found)
    for name, wanted in expected.items():
        assert wanted.shape == found[name].shape, name
        assert wanted.dtype == found[name].dtype, name
        if wanted.dtype.kind == "f":
            assert sqnr_db(wanted, found[name]) >= floor_db, name
        else:
            np.testing.assert_array_equal(wanted, found[name], err_msg=name)


def random_inputs(model: ir.Model, seed: int = 0) -> dict[str, Array]:
    """Normal floats, and integers of 0 or 1, which are indices that always exist."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, Array] = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        assert value.dtype is not None
        dtype = value.dtype.numpy()
        drawn = rng.normal(size=value.shape.numpy()) if dtype.kind == "f" else rng.integers(0, 2, value.shape.numpy())
        inputs[str(value.name)] = drawn.astype(dtype)
    return inputs


def run(model: ir.Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a model by ONNX Runtime without any optimization."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    serialized = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def sqnr_db(expected: Array, found: Array) -> float:
    """Signal over difference; infinite when there is none."""
    signal, noise = expected.astype(np.float64), expected.astype(np.float64) - found
    power = float(np.sum(noise**2))
    return float("inf") if power == 0 else float(10 * np.log10(np.sum(signal**2) / power))


def ops(model: ir.Model) -> list[str]:
    """The operators of a model, in order."""
    return [node.op_type for node in model.graph]


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """A random constant."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
