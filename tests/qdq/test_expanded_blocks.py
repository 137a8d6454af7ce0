"""Expanded blocks in QDQ graphs: integer scales with their own DequantizeLinear, or folded; both compute the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from dovetail.encoding import DType, Granularity, QParams
from dovetail.model.read import read
from dovetail.model.session import Mode
from dovetail.model.write import write
from dovetail.numerics.lpbq import as_expanded
from dovetail.op_support import W4A16_LPBQ
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.invert import invert
from dovetail.targets.ort_cpu.target import ORT_CPU
from dovetail.verify.run import SessionRun
from tests.block_layers import LAYERS, layer_model
from tests.planning import noise, planned


@pytest.mark.parametrize("layer", LAYERS)
def test_both_forms_compute_the_same_and_are_read_back_exactly(layer: str, tmp_path: Path) -> None:
    model = layer_model(layer)
    data = noise(model)
    plan = planned(model, ORT_CPU, W4A16_LPBQ, data=data)
    outputs, weights = [], []
    for folded in (False, True):
        path = tmp_path / f"{folded}.onnx"
        write(emit_qdq(model, plan, folded_scales=folded), path)
        onnx.checker.check_model(path, full_check=True)
        outputs += list(SessionRun(path, Mode.EXACT, tmp_path)([{"x": data["x"][0]}]))
        weights.append(_weight(path))
    assert outputs[0]["y"].tobytes() == outputs[1]["y"].tobytes()
    planned_weight = next(c.storage for c in plan.edges.values() if c.storage.dtype is DType.S4)
    assert weights[0] == planned_weight
    assert weights[1].encoding.granularity is Granularity.BLOCK
    assert as_expanded(weights[1]) == planned_weight


def _weight(path: Path) -> QParams:
    """The qparams of the weight in the plan of an emitted model, which emits the same integers."""
    model, plan = invert(read(path))
    (edge,) = [edge for edge, choice in plan.edges.items() if choice.storage.dtype is DType.S4]
    again = path.with_suffix(".again.onnx")
    write(emit_qdq(model, plan), again)
    first, second = (onnx.load(p) for p in (path, again))
    integers = [[t for t in m.graph.initializer if t.data_type == onnx.TensorProto.INT4] for m in (first, second)]
    assert integers[0][0].raw_data == integers[1][0].raw_data
    params = plan.edges[edge].storage
    assert isinstance(params, QParams)
    return params


def test_weights_are_packed_two_to_a_byte_without_zero_points(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((1024, 48)).astype(np.float32)
    model = layer_model("MatMul", 1024, weight)
    plan = planned(model, ORT_CPU, replace(W4A16_LPBQ))
    sizes = {}
    for folded in (False, True):
        path = tmp_path / f"{folded}.onnx"
        write(emit_qdq(model, plan, folded_scales=folded), path)
        tensors = onnx.load(path).graph.initializer
        (packed,) = [t for t in tensors if t.data_type == onnx.TensorProto.INT4]
        assert len(packed.raw_data) == weight.size // 2
        of_weight = [t for t in tensors if t.name.startswith("w")]
        sizes[folded] = sum(len(t.raw_data) for t in of_weight) / weight.nbytes
    assert sizes[False] < 0.135
    assert sizes[True] < 0.157


def test_scales_of_expanded_blocks_are_not_taken_for_a_weight(tmp_path: Path) -> None:
    model = layer_model("MatMul")
    plan = planned(model, ORT_CPU, W4A16_LPBQ)
    path = tmp_path / "model.onnx"
    write(emit_qdq(model, plan), path)
    inverted, read_plan = invert(read(path))
    assert set(read_plan.edges) == set(plan.edges)
    assert [node.op_type for node in inverted.graph] == ["MatMul"]
