"""Invert a QDQ model and emit it again, and check that its outputs are bit-identical."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.read import read
from dovetail.model.session import Mode, open_session
from dovetail.model.write import serialized
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.invert import invert
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.storage import Choice, Plan, Reason

Array = np.ndarray[Any, np.dtype[Any]]
SEEDS = (0, 1)


@dataclass(frozen=True)
class RoundTrip:
    """The float model and the plan of a QDQ model, and the model emitted from them."""

    model: ir.Model
    plan: Plan
    emitted: ir.Model

    def tensor(self, name: str) -> QParams | None:
        """The qparams of a tensor, None for float."""
        storage = self.plan.tensors[name].storage
        return storage if isinstance(storage, QParams) else None

    def quantized_tensors(self) -> set[str]:
        return {name for name in self.plan.tensors if self.tensor(name) is not None}

    def edges(self) -> dict[str, str]:
        """Edge -> dtype."""
        return {str(edge): choice.storage.dtype.value for edge, choice in self.plan.edges.items()}

    def ops(self) -> list[str]:
        return [node.op_type for node in self.model.graph]


def text_model(folder: Path, text: str, *, opset: int = 21, **constants: Array) -> Path:
    """A model file from ``g (float[2] x) => (float[2] y) { ... }``; constants are passed as arrays."""
    imports = f'"": {opset}, "com.microsoft": 1'
    proto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> {text}")
    for name, array in constants.items():
        value = np.asarray(array)
        tensor = ir.Tensor(value, name=name)
        proto.graph.initializer.append(ir.to_proto(tensor))
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def round_trip(path: Path, *, seeds: tuple[int, ...] = SEEDS) -> RoundTrip:
    """Invert a file and emit it again; check that the result is valid, bit-identical and stable."""
    original = read(path)
    before = serialized(original)
    model, plan = invert(original)
    assert serialized(original) == before
    assert not any(is_quantize(node) or is_dequantize(node) for node in model.graph)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    emitted = emit_qdq(model, plan)
    check_emitted(emitted)
    for seed in seeds:
        assert_bit_equal(path.read_bytes(), serialized(emitted), random_feed(path, seed))
    assert_stable(model, plan, emitted)
    return RoundTrip(model, plan, emitted)


def check_emitted(emitted: ir.Model) -> None:
    """Check that a model is valid, that all names are unique, and that every initializer is used."""
    onnx.checker.check_model(ir.to_proto(emitted), full_check=True)
    values = [*emitted.graph.inputs, *emitted.graph.initializers.values()]
    names = [v.name for v in (*values, *(v for n in emitted.graph for v in n.outputs)) if v.name]
    assert len(names) == len(set(names))
    nodes = [node.name for node in emitted.graph]
    assert len(nodes) == len(set(nodes))
    for value in emitted.graph.initializers.values():
        assert value.uses() or value.is_graph_output(), value.name


def assert_stable(model: ir.Model, plan: Plan, emitted: ir.Model) -> None:
    """Check that inverting the emitted model gives the same graph and the same plan."""
    again, plan_again = invert(emitted)
    assert [(n.name, n.op_type) for n in again.graph] == [(n.name, n.op_type) for n in model.graph]
    assert [v.name for v in again.graph.outputs] == [v.name for v in model.graph.outputs]
    assert_same_plan(plan, plan_again)
    twice = emit_qdq(again, plan_again)
    assert [n.op_type for n in twice.graph] == [n.op_type for n in emitted.graph]
    assert len(twice.graph.initializers) == len(emitted.graph.initializers)


def assert_same_plan(expected: Plan, actual: Plan) -> None:
    """Check that two plans have equal tensors, edges and integers."""
    assert expected.quantized_io == actual.quantized_io
    assert dict(expected.tensors) == dict(actual.tensors)
    assert dict(expected.edges) == dict(actual.edges)
    assert expected.stored.keys() == actual.stored.keys()
    for edge, array in expected.stored.items():
        np.testing.assert_array_equal(array, actual.stored[edge], err_msg=str(edge))


def assert_bit_equal(reference: bytes, model: bytes, feed: Mapping[str, Array]) -> None:
    """Check that two models have bit-identical outputs, in exact mode and without any optimization."""
    for expected, actual in zip(run_both_ways(reference, feed), run_both_ways(model, feed), strict=True):
        assert list(expected) == list(actual)
        for name, array in expected.items():
            assert array.dtype == actual[name].dtype, name
            assert array.shape == actual[name].shape, name
            assert array.tobytes() == actual[name].tobytes(), name


def run_both_ways(model: bytes, feed: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The outputs in exact mode, and without optimizations."""
    return [_outputs(open_session(model, Mode.EXACT), feed), _outputs(plain_session(model), feed)]


def plain_session(model: bytes) -> Any:
    """A session without graph optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _outputs(session: Any, feed: Mapping[str, Array]) -> dict[str, Array]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def random_feed(path: Path, seed: int = 0) -> dict[str, Array]:
    """Normally distributed floats, or integers from 0 to 99, for the inputs of a model file."""
    rng = np.random.default_rng(seed)
    feed: dict[str, Array] = {}
    for value in ir.load(path).graph.inputs:
        assert value.shape is not None
        assert value.dtype is not None
        dtype, shape = value.dtype.numpy(), value.shape.numpy()
        feed[str(value.name)] = (
            rng.normal(size=shape).astype(dtype) if dtype.kind == "f" else rng.integers(0, 100, shape).astype(dtype)
        )
    return feed


def plan_of(tensors: Mapping[str, QParams], edges: Mapping[Edge, QParams] | None = None, **rest: Any) -> Plan:
    """A plan with these qparams of tensors and edges."""
    return Plan(
        "test",
        "by hand",
        {name: Choice(params, Reason.PINNED, "by hand") for name, params in tensors.items()},
        {edge: Choice(params, Reason.PINNED, "by hand") for edge, params in (edges or {}).items()},
        **rest,
    )
