"""Attention on the real builder: one kernel in the planned type, or a finding that names the edge that broke it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.backend import CompileResult, Outcome, ReadBack
from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.finding import Severity, Status, Thresholds
from dovetail.model.edit import constant_of
from dovetail.model.session import Mode
from dovetail.op_support import FP16
from dovetail.passes.remove_nan_guard import remove_nan_guard
from dovetail.plan.make import make_plan
from dovetail.plan.request import Request
from dovetail.storage import IN_FLOAT32, Choice, Plan, Reason
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.targets.tensorrt.table import F8, FP8, S8, SOFTMAX_SCALE_FP8, SOFTMAX_SCALE_INT8, W8A8
from dovetail.verify.run import SessionRun
from dovetail.verify.verdicts import fidelity
from tests.backends.tensorrt.building import attention_note, built, built_plan
from tests.equality import model_from, normal, run, sqnr_db
from tests.networks.attention_layer import layer
from tests.planning import noise, observe, planned

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")

# Engine layers of one attention layer in the best variant that was written by hand.
BEST = {"fp16": 7, "fp8": 9, "w8a8": 9}
SEPARATE = "planned one fused attention kernel, found separate kernels: {}"
TYPE_NAMES = {"fp8": "FP8", "w8a8": "Int8", "fp16": "Half"}
PRECISIONS = {"fp8": FP8, "w8a8": W8A8, "fp16": FP16}


@pytest.fixture(scope="module")
def trt() -> Target:
    return open_target("tensorrt")


def rows(read_back: ReadBack, outcome: Outcome) -> dict[str, str]:
    assert read_back.unparsed == ""
    assert read_back.tensors
    return {row.tensor if row.edge is None else str(row.edge): row.detail for row in read_back.tensors
            if row.outcome is outcome}  # fmt: skip


def assert_failed(read_back: ReadBack) -> None:
    """The read-back fails the verdict, whose reason names the first tensor that is not as planned."""
    verdict = fidelity(read_back, Thresholds())
    first = next(row for row in read_back.tensors if row.outcome is Outcome.CHANGED)
    assert verdict.status is Status.FAIL
    assert verdict.reason.endswith(f"the first is {first.tensor!r}: {first.detail}")


@pytest.mark.parametrize("precision", ["fp8", "w8a8"])
def test_a_mask_that_is_an_input_may_have_any_type(precision: str, trt: Target, tmp_path: Path) -> None:
    compiled, read_back, _ = built(layer(masked=True, mask_is_input=True), trt, PRECISIONS[precision], tmp_path)
    assert compiled.findings == ()
    assert rows(read_back, Outcome.CHANGED) == {}
    dtype = TYPE_NAMES[precision]
    assert f"as one kernel in the planned type: 1 ({dtype}/Half -> {dtype})" in compiled.notes[1]


def layer_count(compiled: CompileResult) -> int:
    return int(compiled.notes[0].removeprefix("the engine has ").split()[0])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_operand_and_the_kernel_are_as_planned(precision: str, trt: Target, tmp_path: Path) -> None:
    model = layer(64, 64)
    compiled, read_back, _ = built(model, trt, PRECISIONS[precision], tmp_path)
    assert rows(read_back, Outcome.CHANGED) == {}
    assert rows(read_back, Outcome.NOT_FOUND) == {}
    dtype = TYPE_NAMES[precision]
    assert rows(read_back, Outcome.MATCHED)["o"] == f"one attention kernel, {dtype} -> {dtype}"
    assert compiled.findings == ()
    assert layer_count(compiled) <= BEST[precision]
    assert compiled.notes[1] == attention_note(1, f"1 ({dtype} -> {dtype})")


def test_which_edges_have_qdq_pairs_in_the_plan(trt: Target) -> None:
    model = layer()
    plan = planned(model, trt, FP8, data=noise(model))
    edges = {str(edge) for edge, choice in plan.edges.items() if isinstance(choice.storage, QParams)}
    operands = {f"{node}:{index}" for node in ("to_q", "to_k", "to_v", "scores", "mix", "out") for index in (0, 1)}
    assert edges == operands  # both operands of every MatMul; nothing on scores, norm, residual
    assert all(not isinstance(choice.storage, QParams) for choice in plan.tensors.values())
    shared = {plan.edges[Edge(node, 0)].storage for node in ("to_q", "to_k", "to_v")}
    assert len(shared) == 1
    (softmax,) = {plan.edges[Edge("mix", 0)].storage}
    assert isinstance(softmax, QParams)
    assert float(softmax.scale) == np.float32(1 / 448)
    in_integers = planned(model, trt, W8A8, data=noise(model)).edges[Edge("mix", 0)].storage
    assert isinstance(in_integers, QParams)
    assert float(in_integers.scale) == np.float32(1 / 127)
    assert in_integers.dtype is DType.S8
    assert not in_integers.zero_point.any()


@pytest.mark.parametrize(("precision", "constant"), [("fp8", SOFTMAX_SCALE_FP8), ("w8a8", SOFTMAX_SCALE_INT8)])
def test_which_edges_have_qdq_pairs_in_the_file(precision: str, constant: float, trt: Target, tmp_path: Path) -> None:
    model = layer(masked=True)
    (artifact,) = trt.backend.emit(model, planned(model, trt, PRECISIONS[precision], data=noise(model)), tmp_path)
    emitted = ir.load(artifact.path).graph
    # A LayerNorm is quantized once, and q, k and v read the same DequantizeLinear.
    norm = next(node for node in emitted if node.op_type == "LayerNormalization").outputs[0]
    (quantize,) = [user for user, _ in norm.uses()]
    (dequantize,) = [user for user, _ in quantize.outputs[0].uses()]
    assert [quantize.op_type, dequantize.op_type] == ["QuantizeLinear", "DequantizeLinear"]
    assert {user.name for user, _ in dequantize.outputs[0].uses()} == {"to_q", "to_k", "to_v"}
    # The residual and the mask are float on both sides, and the scores are not quantized.
    producers = {node.name: [v.producer() for v in node.inputs if v is not None] for node in emitted}
    adds = {node.name for node in emitted if node.op_type in ("Add", "Softmax")}
    sources = {producer.op_type for name in adds for producer in producers[name] if producer is not None}
    assert not sources & {"DequantizeLinear"}
    assert not any(
        user.op_type == "QuantizeLinear" for name in adds - softmaxes(emitted) for user in consumers(emitted, name)
    )
    # The Softmax has the fixed scale, rounded to float16.
    (softmax,) = softmaxes(emitted)
    (quantize,) = consumers(emitted, softmax)
    assert float(constant_of(quantize.inputs[1])) == np.float16(constant)  # type: ignore[arg-type]
    assert constant in (1 / 448, 1 / 127)


@pytest.mark.parametrize("precision", ["fp8", "w8a8"])
def test_the_simulation_runs_the_file_as_written(precision: str, tmp_path: Path) -> None:
    """ONNX Runtime's optimizer moves and fuses Q/DQ pairs; the simulation must run without that."""
    model, target = layer(), open_target("tensorrt", {"compute": "fp32"})  # float16 rounding depends on the fusions
    data = noise(model)
    (artifact,) = target.backend.emit(model, planned(model, target, PRECISIONS[precision], data=data), tmp_path)
    sample = {name: array[0] for name, array in data.items()}
    (simulated,) = SessionRun(artifact.path, Mode.EXACT, tmp_path)([sample])
    plain = run(ir.load(artifact.path), sample)
    assert sqnr_db(plain["y"], simulated["y"]) > 100


def softmaxes(graph: ir.Graph) -> set[str | None]:
    return {node.name for node in graph if node.op_type == "Softmax"}


def consumers(graph: ir.Graph, name: str | None) -> list[ir.Node]:
    node = next(node for node in graph if node.name == name)
    return [user for user, _ in node.outputs[0].uses()]


@pytest.mark.parametrize(
    ("precision", "tokens", "size", "keys", "why"),
    [
        ("fp8", 17, 32, None, "FP8 attention is fused only with 32 keys or more, this one has 17"),
        ("w8a8", 64, 128, None, "INT8 attention is fused only with head sizes 16, 32, 64, this one has 128"),
        ("w8a8", 24, 64, 513, "INT8 attention is fused only with 512 keys or fewer, this one has 513"),
    ],
)
def test_sizes_without_an_8_bit_kernel_stay_in_float16(
    precision: str, tokens: int, size: int, keys: int | None, why: str, trt: Target, tmp_path: Path
) -> None:
    model = layer(tokens, size, keys)
    compiled, read_back, plan = built(model, trt, PRECISIONS[precision], tmp_path)
    assert rows(read_back, Outcome.CHANGED) == {}
    assert rows(read_back, Outcome.MATCHED)["o"].startswith("one attention kernel, Half ->")
    assert compiled.findings == ()
    # With the Q/DQ pairs forced, the attention is not fused, and the finding says why.
    forced = with_pairs(plan, model, trt, F8 if precision == "fp8" else S8)
    compiled, read_back = built_plan(model, forced, trt, tmp_path)
    (finding,) = compiled.findings
    assert finding.severity is Severity.ERROR
    assert finding.message.endswith(why)
    assert rows(read_back, Outcome.CHANGED) == {"o": SEPARATE.format(why)}


@pytest.mark.parametrize(
    ("size", "keys", "precision"),
    [(256, 32, "fp8"), (16, 512, "w8a8")],
)
def test_sizes_with_an_8_bit_kernel(size: int, keys: int, precision: str, trt: Target, tmp_path: Path) -> None:
    model = layer(8, size, keys)
    read_back = built(model, trt, PRECISIONS[precision], tmp_path)[1]
    dtype = TYPE_NAMES[precision]
    assert rows(read_back, Outcome.MATCHED)["o"] == f"one attention kernel, {dtype} -> {dtype}"


WINDOWS = """g (float[{windows},{heads},36,{size}] q, float[{windows},{heads},36,{size}] v) => (float[{windows},36,c] y)
<int64[3] flat = {{0, 36, -1}}>
{{ t = Transpose<perm = [0,1,3,2]>(v)  [scores] s = MatMul(q, t)  m = Add(s, mask)  p = Softmax<axis = -1>(m)
  [mix] o = MatMul(p, v)  u = Transpose<perm = [0,2,1,3]>(o)  f = Reshape(u, flat)  [out] y = MatMul(f, w) }}"""


@pytest.mark.parametrize(
    ("precision", "windows", "heads", "size", "in_float16"),
    [
        ("fp8", 4, 1, 32, True),
        ("fp8", 4, 2, 32, False),
        ("w8a8", 4, 1, 32, True),
        ("w8a8", 4, 2, 32, False),
        ("w8a8", 4, 1, 64, False),
    ],
)
def test_masked_attention_of_one_head_over_windows(
    precision: str, windows: int, heads: int, size: int, in_float16: bool, trt: Target, tmp_path: Path
) -> None:
    text = WINDOWS.format(windows=windows, heads=heads, size=size)
    model = model_from(text, mask=normal(1, heads, 36, 36), w=normal(heads * size, 8))
    compiled, read_back, plan = built(model, trt, PRECISIONS[precision], tmp_path)
    assert compiled.findings == ()
    assert rows(read_back, Outcome.CHANGED) == {}
    dtype = "Half" if in_float16 else TYPE_NAMES[precision]
    assert rows(read_back, Outcome.MATCHED)["o"].startswith(f"one attention kernel, {dtype} ->")
    if in_float16:
        forced = with_pairs(plan, model, trt, F8 if precision == "fp8" else S8)
        assert "o" in rows(built_plan(model, forced, trt, tmp_path)[1], Outcome.CHANGED)


def with_pairs(plan: Plan, model: object, target: Target, encoding: object) -> Plan:
    """The plan with Q/DQ pairs on all four operands of the attention, whatever the table says."""
    params = QParams(encoding, np.float32(0.02), np.int32(0))  # type: ignore[arg-type]
    edges = {Edge(node, index): Choice(params, Reason.PINNED) for node in ("scores", "mix") for index in (0, 1)}
    return dataclasses.replace(plan, edges={**plan.edges, **edges})


@pytest.mark.parametrize(
    ("precision", "edge", "operand"),
    [
        ("fp8", "mix:0", "softmax output"),
        ("w8a8", "mix:0", "softmax output"),
        ("fp8", "mix:1", "value"),
        ("w8a8", "scores:0", "query"),
        ("fp8", "scores:1", "key"),
    ],
)
def test_an_operand_without_a_qdq_pair_is_named(
    precision: str, edge: str, operand: str, trt: Target, tmp_path: Path
) -> None:
    model = layer()
    plan = planned(model, trt, PRECISIONS[precision], data=noise(model))
    node, index = edge.split(":")
    edges = {e: c for e, c in plan.edges.items() if e != Edge(node, int(index))}
    compiled, read_back = built_plan(model, dataclasses.replace(plan, edges=edges), trt, tmp_path)
    (finding,) = compiled.findings
    why = f"there is no Q/DQ pair on its {operand}"
    assert finding.message.endswith(why)
    assert rows(read_back, Outcome.CHANGED)["o"] == SEPARATE.format(why)
    assert_failed(read_back)


def test_a_qdq_pair_on_the_scores_is_named(trt: Target, tmp_path: Path) -> None:
    model = layer(masked=True)
    plan = planned(model, trt, FP8, data=noise(model))
    as_planned = built_plan(model, plan, trt, tmp_path)[1]
    assert rows(as_planned, Outcome.MATCHED)["o"] == "one attention kernel, FP8 -> FP8"
    add = next(node for node in model.graph if node.outputs[0].name == "s1")
    params = QParams(F8, np.float32(0.02), np.int32(0))
    edges = {**plan.edges, Edge(str(add.name), 0): Choice(params, Reason.PINNED)}
    read_back = built_plan(model, dataclasses.replace(plan, edges=edges), trt, tmp_path)[1]
    why = f"there is a Q/DQ pair on the scores, before Add {add.name!r}"
    assert rows(read_back, Outcome.CHANGED)["o"] == SEPARATE.format(why)


def test_a_nan_guard_breaks_the_fusion_and_is_removed(trt: Target, tmp_path: Path) -> None:
    model = layer(guarded=True)
    stats = observe(model, trt, noise(model))
    plan = make_plan(model, trt.table, stats, Request(FP8))
    compiled, read_back = built_plan(model, plan, trt, tmp_path)
    where = next(node.name for node in model.graph if node.op_type == "Where")
    why = f"Where {where!r}, which replaces NaN, is between the Softmax and the second MatMul"
    (finding,) = compiled.findings
    assert finding.severity is Severity.ERROR
    assert finding.message == f"attention is not one fused FP8 kernel (in float16 it is): {why}"
    assert rows(read_back, Outcome.CHANGED)["o"] == SEPARATE.format(why)
    assert_failed(read_back)
    remove_nan_guard(model)
    compiled, read_back, _ = built(model, trt, FP8, tmp_path)
    assert rows(read_back, Outcome.MATCHED)["o"] == "one attention kernel, FP8 -> FP8"
    assert compiled.findings == ()
    assert fidelity(read_back, Thresholds()).status is Status.PASS


def test_int8_attention_requires_a_qdq_pair_on_its_output(trt: Target, tmp_path: Path) -> None:
    model = layer()
    for precision, why in ((W8A8, "there is no Q/DQ pair on its output, which INT8 attention requires"), (FP8, "")):
        plan = planned(model, trt, precision, data=noise(model))
        edges = {e: c for e, c in plan.edges.items() if e.node != "out"}
        compiled, _ = built_plan(model, dataclasses.replace(plan, edges=edges), trt, tmp_path)
        assert [finding.message.rpartition(": ")[2] for finding in compiled.findings] == ([why] if why else [])


def test_an_operand_in_float_where_8_bit_was_planned_is_seen(trt: Target, tmp_path: Path) -> None:
    """The builder silently computes a MatMul in float16 if only one of its operands has a Q/DQ pair."""
    model = layer()
    plan = planned(model, trt, FP8, data=noise(model))
    edges = {e: Choice(IN_FLOAT32, Reason.PINNED) if e == Edge("out", 1) else c for e, c in plan.edges.items()}
    read_back = built_plan(model, dataclasses.replace(plan, edges=edges), trt, tmp_path)[1]
    assert "FP8" in rows(read_back, Outcome.CHANGED)["out:0"]
    assert_failed(read_back)
