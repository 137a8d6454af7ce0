"""Normalizations other than LayerNormalization, and float operators next to layout operators, on the real compiler."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx_ir as ir
import pytest

from dovetail.backend import MODEL, Outcome
from dovetail.encoding import DType
from dovetail.model.session import Mode
from dovetail.op_support import A8, A16, W8A8, W8A16, OpSupport, Precision, signature
from dovetail.passes.fuse_l2_norm import fuse_l2_norm
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.verify.run import SessionRun
from tests.changed import changed, with_op
from tests.equality import model_from, normal, sqnr_db
from tests.planning import noise, planned

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

AS_PLANNED = (Outcome.MATCHED, Outcome.ABSORBED)
INTEGER = {W8A16: "uint16", W8A8: "uint8"}


@pytest.fixture
def htp() -> Target:
    return open_target("qnn-htp:sm8550")


def ran(model: ir.Model, target: Target, precision: Precision, folder: Path) -> tuple[float, list[str], set[str]]:
    """The emulator's SQNR against the simulation, the tensors that are not as planned, and the planned dtypes."""
    data = noise(model)
    plan = planned(model, target, precision, data=data)
    artifacts = target.backend.emit(model, plan, folder)
    compiled = target.backend.compile(artifacts, folder)
    assert compiled.error == ""
    read = target.backend.read_back(compiled, plan)
    sample = {name: array[0] for name, array in data.items()}
    simulation = SessionRun(next(a.path for a in artifacts if a.name == MODEL), Mode.EXACT, folder)
    (expected,), (emulated,) = list(simulation([sample])), list(target.backend.runner.run(compiled, [sample]))
    agreement = min(sqnr_db(expected[name], emulated[name]) for name in expected)
    rows = [f"{row.tensor}: {row.detail}" for row in read.tensors if row.outcome not in AS_PLANNED]
    return agreement, rows, {str(choice.storage.dtype) for name, choice in plan.tensors.items() if name != "x"}


@pytest.mark.parametrize("shape", ["1,18,9,13", "4,6,50"])
@pytest.mark.parametrize(("precision", "least_db"), [(W8A16, 70), (W8A8, 35)])
def test_instance_normalization_runs_in_integers(
    htp: Target, tmp_path: Path, shape: str, precision: Precision, least_db: float
) -> None:
    text = f"g (float[{shape}] x) => (float[{shape}] y) {{ a = Relu(x) n = InstanceNormalization(a, s, b) y = Neg(n) }}"
    channels = int(shape.split(",")[1])
    model = model_from(text, s=normal(channels), b=normal(channels, seed=1))
    agreement_db, rows, dtypes = ran(model, htp, precision, tmp_path)
    assert (rows, dtypes) == ([], {INTEGER[precision]})
    assert agreement_db > least_db


def test_the_gamma_of_a_16_bit_instance_normalization_has_16_bits(htp: Target, tmp_path: Path) -> None:
    text = "g (float[1,8,12,10] x) => (float[1,8,12,10] y) { y = InstanceNormalization(x, w, b) }"
    model = model_from(text, w=1 + abs(normal(8)), b=normal(8, seed=1))
    gamma = {value.storage.dtype for edge, value in planned(model, htp, W8A16).edges.items() if edge.index == 1}
    assert gamma == {DType.U16}
    assert ran(model, htp, W8A16, tmp_path)[0] > 70


COSINE = """g (float[6,3,16,12] x) => (float[6,3,16,12] y)
<int64[1] last = {-1}, float e = {1e-12}, int64[4] s = {6,3,16,12}>
{ a = Neg(x) n = ReduceL2(a, last) c = Clip(n, e) b = Expand(c, s) d = Div(a, b) y = Neg(d) }"""


@pytest.mark.parametrize(("precision", "least_db"), [(W8A16, 60), (W8A8, 40)])
def test_a_division_by_the_norm_is_one_operator(
    htp: Target, tmp_path: Path, precision: Precision, least_db: float
) -> None:
    model = model_from(COSINE)
    assert ran(model, htp, precision, tmp_path)[1] == []  # also in parts, of which the norm is planned in float16
    fuse_l2_norm(model)
    agreement_db, rows, dtypes = ran(model, htp, precision, tmp_path)
    assert (rows, dtypes) == ([], {INTEGER[precision], "float16"})  # quantized it is wrong in some graphs (Q549)
    assert agreement_db > least_db


def test_a_quantized_8_bit_lp_normalization_is_less_accurate_than_in_float16(htp: Target, tmp_path: Path) -> None:
    text = "g (float[1,60,7,24] x) => (float[1,60,7,24] y) { a = Neg(x) n = LpNormalization<axis=1>(a) y = Neg(n) }"
    naive = with_op(htp, "LpNormalization", OpSupport((signature(A8, out=A8), signature(A16, out=A16))))
    model = model_from(text)
    assert ran(model, naive, W8A8, tmp_path)[0] + 5 < ran(model, htp, W8A8, tmp_path)[0]


MOVED = """g (float[1,12,10] x) => (float[1,4,30] y) <int64[3] s = {1,30,4}>
{ a = Relu(x) f = Selu(a) r = Reshape(f, s) t = Transpose<perm=[0,2,1]>(r) y = Neg(t) }"""


def test_a_conversion_behind_a_layout_operator_is_planned_in_front_of_it(htp: Target, tmp_path: Path) -> None:
    ops = {op: dataclasses.replace(support, quantized_early=False) for op, support in htp.table.ops.items()}
    model = model_from(MOVED)
    _, rows, _ = ran(model, changed(htp, ops=ops), W8A16, tmp_path)
    assert "r: planned float16, found uint16: written by Reshape" in rows
    agreement_db, rows, _ = ran(model, htp, W8A16, tmp_path)
    assert rows == []
    assert agreement_db > 45


@pytest.mark.parametrize(("op", "gates"), [("GRU", 3), ("LSTM", 4)])
def test_slices_around_a_recurrent_layer_are_as_planned(htp: Target, tmp_path: Path, op: str, gates: int) -> None:
    """The provider lowers it to StridedSlices and one operator per step, all in float16."""
    text = f"""g (float[8,1,6] x) => (float[5,1,1,10] y)
    <int64[1] one = {{1}}, int64[1] six = {{6}}, int64[1] zero = {{0}}>
    {{ a = Relu(x) s = Slice(a, one, six, zero) h = {op}<hidden_size=10>(s, w, r) t = Neg(h) y = Relu(t) }}"""
    model = model_from(text, w=normal(1, gates * 10, 6) / 4, r=normal(1, gates * 10, 10, seed=1) / 4)
    _, rows, dtypes = ran(model, htp, W8A16, tmp_path)
    assert (rows, dtypes) == ([], {"uint16", "float16"})
