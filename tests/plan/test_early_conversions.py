"""Where a float tensor is quantized: before the operators that move it, if integers are all that is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.model.session import Mode
from dovetail.op_support import FP16, W8A16
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.make import make_plan
from dovetail.plan.request import Request
from dovetail.qdq.emit import emit_qdq
from dovetail.storage import Reason
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.verify.run import SessionRun
from tests.changed import changed
from tests.planning import graph, noise, observe, planned

SHAPES = "<int64[3] s = {1,6,4}, int64[3] once = {1,1,1}>"
# Selu has no integer kernel on HTP.
CHAIN = "a = Selu(x) [move] r = Reshape(a, s) [turn] t = Transpose <perm = [0,2,1]> (r)"


def body(nodes: str, outputs: str) -> str:
    return f"g (float[1,4,6] x) => ({outputs}) {SHAPES} {{ {nodes} }}"


@pytest.fixture
def htp() -> Target:
    return open_target("qnn-htp:sm8550")


def naive(target: Target) -> Target:
    """The target without operators before which a conversion is moved."""
    ops = {op: dataclasses.replace(support, quantized_early=False) for op, support in target.table.ops.items()}
    return changed(target, ops=ops)


@pytest.mark.parametrize(
    ("nodes", "outputs", "in_float", "converts"),
    [
        (f"{CHAIN} y = Relu(t)", "float[1,4,6] y", "a", ["move:0"]),
        (f"{CHAIN} y = Relu(t) z = Neg(t)", "float[1,4,6] y, float[1,4,6] z", "a", ["move:0"]),
        # A float kernel reads what the first operator moves: only the second one is after the conversion.
        (f"{CHAIN} y = Relu(t) z = Selu(r)", "float[1,4,6] y, float[1,6,4] z", "a r z", ["turn:0"]),
        (f"{CHAIN} y = Relu(t) z = Selu(t)", "float[1,4,6] y, float[1,4,6] z", "a r t z", []),
        (f"{CHAIN} y = Relu(t)", "float[1,4,6] y, float[1,4,6] t", "a r t", []),
        (f"{CHAIN} y = Selu(t)", "float[1,4,6] y", "a r t y", []),
        # The backend does not move a QuantizeLinear before a Tile.
        ("a = Selu(x) i = Tile(a, once) y = Relu(i)", "float[1,4,6] y", "a i", []),
    ],
)
def test_only_what_is_read_as_integers_is_quantized_early(
    htp: Target, nodes: str, outputs: str, in_float: str, converts: list[str]
) -> None:
    model = graph(body(nodes, outputs))
    plan = planned(model, htp, W8A16, data=noise(model))
    float_tensors = [name for name, choice in plan.tensors.items() if choice.storage.dtype is DType.F16]
    assert float_tensors == ["x", *in_float.split()]
    separate = {str(edge): choice for edge, choice in plan.edges.items() if choice.why is Reason.SEPARATE}
    assert list(separate) == converts
    assert all("everything after it reads integers" in choice.detail for choice in separate.values())


def test_what_the_caller_keeps_in_float_stays_float(htp: Target) -> None:
    model = graph(body(f"{CHAIN} y = Relu(t)", "float[1,4,6] y"))
    plan = planned(model, htp, W8A16, data=noise(model), keep={"t": FP16})
    assert not plan.tensors["t"].storage.dtype.is_quantized


def test_the_simulation_is_the_same(htp: Target, tmp_path: Path) -> None:
    model = graph(body(f"{CHAIN} y = Relu(t) z = Neg(r)", "float[1,4,6] y, float[1,6,4] z"))
    data = noise(model)
    early, late = (planned(model, target, W8A16, data=data) for target in (htp, naive(htp)))
    assert early.tensors["r"].storage != late.tensors["r"].storage
    sample = {"x": data["x"][0]}
    outputs = [next(iter(SessionRun(emit_qdq(model, plan), Mode.EXACT, tmp_path)([sample]))) for plan in (early, late)]
    for name in ("y", "z"):
        np.testing.assert_array_equal(outputs[0][name], outputs[1][name])


def test_imported_scales_are_kept(htp: Target) -> None:
    model = graph(body(f"{CHAIN} y = Relu(t)", "float[1,4,6] y"))
    data = noise(model)
    given = QParams(W8A16.activation, np.float32(0.25), np.int32(7))
    imported = ImportedQParams(tensors={"a": given}, implied={}, constants={})
    plan = make_plan(model, htp.table, observe(model, htp, data), Request(W8A16), imported)
    assert plan.tensors["r"].storage == plan.tensors["t"].storage == given
    assert plan.edges[Edge("move", 0)].storage == given
