"""A QDQ model through its inverse and back: the proof that nothing of its numbers is lost."""

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
class Trip:
    """The float model and the plan of a QDQ model, and what was emitted from them."""

    model: ir.Model
    plan: Plan
    emitted: ir.Model

    def tensor(self, name: str) -> QParams | None:
        """How a tensor is stored, None for float."""
        storage = self.plan.tensors[name].storage
        return storage if isinstance(storage, QParams) else None

    def stored_tensors(self) -> set[str]:
        return {name for name in self.plan.tensors if self.tensor(name) is not None}

    def edges(self) -> dict[str, str]:
        """Edge -> stored dtype."""
        return {str(edge): choice.storage.dtype.value for edge, choice in self.plan.edges.items()}

    def ops(self) -> list[str]:
        return [node.op_type for node in self.model.graph]


def text_model(folder: Path, text: str, *, opset: int = 21, **constants: Array) -> Path:
    """A file from ``g (float[2] x) => (float[2] y) { ... }``; constants are given as arrays."""
    imports = f'"": {opset}, "com.microsoft": 1'
    proto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> {text}")
    for name, array in constants.items():
        value = np.asarray(array)
        tensor = ir.Tensor(value, name=name)
        proto.graph.initializer.append(ir.to_proto(tensor))
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def round_trip(path: Path, *, seeds: tuple[int, ...] = SEEDS) -> Trip:
    """Invert a file and emit it again; prove valid, unchanged, bit-equal and stable."""
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
    return Trip(model, plan, emitted)


def check_emitted(emitted: ir.Model) -> None:
    """Valid by the checker, and every value and node has a name of its own."""
    onnx.checker.check_model(ir.to_proto(emitted), full_check=True)
    values = [*emitted.graph.inputs, *emitted.graph.initializers.values()]
    names = [v.name for v in (*values, *(v for n in emitted.graph for v in n.outputs)) if v.name]
    assert len(names) == len(set(names))
    nodes = [node.name for node in emitted.graph]
    assert len(nodes) == len(set(nodes))
    for value in emitted.graph.initializers.values():
        assert value.uses() or value.is_graph_output(), value.name


def assert_stable(model: ir.Model, plan: Plan, emitted: ir.Model) -> None:
    """Inverting what was emitted gives the same graph and the same plan."""
    again, plan_again = invert(emitted)
    assert [(n.name, n.op_type) for n in again.graph] == [(n.name, n.op_type) for n in model.graph]
    assert [v.name for v in again.graph.outputs] == [v.name for v in model.graph.outputs]
    assert_same_plan(plan, plan_again)
    twice = emit_qdq(again, plan_again)
    assert [n.op_type for n in twice.graph] == [n.op_type for n in emitted.graph]
    assert len(twice.graph.initializers) == len(emitted.graph.initializers)


def assert_same_plan(one: Plan, two: Plan) -> None:
    """Two plans store the same things in the same way."""
    assert one.quantized_io == two.quantized_io
    assert dict(one.tensors) == dict(two.tensors)
    assert dict(one.edges) == dict(two.edges)
    assert one.stored.keys() == two.stored.keys()
    for edge, array in one.stored.items():
        np.testing.assert_array_equal(array, two.stored[edge], err_msg=str(edge))


def assert_bit_equal(one: bytes, two: bytes, feed: Mapping[str, Array]) -> None:
    """Two models give the same bits, run exactly and run without any optimization."""
    for expected, found in zip(run_both_ways(one, feed), run_both_ways(two, feed), strict=True):
        assert list(expected) == list(found)
        for name, wanted in expected.items():
            assert wanted.dtype == found[name].dtype, name
            assert wanted.shape == found[name].shape, name
            assert wanted.tobytes() == found[name].tobytes(), name


def run_both_ways(model: bytes, feed: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The outputs in exact mode, and without optimizations."""
    return [_outputs(open_session(model, Mode.EXACT), feed), _outputs(plain_session(model), feed)]


def plain_session(model: bytes) -> Any:
    """A session in which every node runs as it is written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _outputs(session: Any, feed: Mapping[str, Array]) -> dict[str, Array]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def random_feed(path: Path, seed: int = 0) -> dict[str, Array]:
    """Normal floats and all sorts of integers for a file's inputs."""
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
    """A plan by hand."""
    return Plan(
        "test",
        "by hand",
        {name: Choice(params, Reason.PINNED, "by hand") for name, params in tensors.items()},
        {edge: Choice(params, Reason.PINNED, "by hand") for edge, params in (edges or {}).items()},
        **rest,
    )
