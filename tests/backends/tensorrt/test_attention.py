"""Attention on the real builder: one kernel in the planned type, and a finding that names the edge where it is not."""

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
from tests.backends.tensorrt.building import built, built_plan
from tests.equality import run, sqnr_db
from tests.networks.attention_layer import layer
from tests.planning import noise, observe, planned

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")

# Layers of one attention layer, the best of the variants written by hand (the facts of the project).
BEST = {"fp16": 7, "fp8": 9, "w8a8": 9}
WORDS = {"fp8": "FP8", "w8a8": "Int8", "fp16": "Half"}
PRECISIONS = {"fp8": FP8, "w8a8": W8A8, "fp16": FP16}


@pytest.fixture(scope="module")
def trt() -> Target:
    return open_target("tensorrt")


def rows(read_back: ReadBack, outcome: Outcome) -> dict[str, str]:
    assert read_back.unparsed == ""
    assert read_back.tensors
    return {one.tensor if one.edge is None else str(one.edge): one.detail for one in read_back.tensors
            if one.outcome is outcome}  # fmt: skip


def assert_failed(read_back: ReadBack) -> None:
    """What was read back fails the verdict, whose reason names the first that is not as planned."""
    verdict = fidelity(read_back, Thresholds())
    first = next(one for one in read_back.tensors if one.outcome is Outcome.CHANGED)
    assert verdict.status is Status.FAIL
    assert verdict.reason.endswith(f"the first is {first.tensor!r}: {first.detail}")


@pytest.mark.parametrize("precision", ["fp8", "w8a8"])
def test_a_mask_that_comes_with_the_data_may_be_of_any_type(precision: str, trt: Target, tmp_path: Path) -> None:
    compiled, read_back, _ = built(layer(masked=True, mask_is_input=True), trt, PRECISIONS[precision], tmp_path)
    assert compiled.findings == ()
    assert rows(read_back, Outcome.CHANGED) == {}
    word = WORDS[precision]
    assert f"as one kernel as planned 1 {word}/Half -> {word}" in compiled.notes[1]


def layer_count(compiled: CompileResult) -> int:
    return int(compiled.notes[0].removeprefix("the engine has ").split()[0])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_operand_and_the_kernel_are_as_planned(precision: str, trt: Target, tmp_path: Path) -> None:
    model = layer(64, 64)
    compiled, read_back, _ = built(model, trt, PRECISIONS[precision], tmp_path)
    assert rows(read_back, Outcome.CHANGED) == {}
    assert rows(read_back, Outcome.NOT_FOUND) == {}
    word = WORDS[precision]
    assert rows(read_back, Outcome.MATCHED)["o"] == f"one attention kernel, {word} -> {word}"
    assert compiled.findings == ()
    assert layer_count(compiled) <= BEST[precision]
    assert compiled.notes[1] == f"1 attention blocks: as one kernel as planned 1 {word} -> {word}; in float16 1"


def test_where_the_pairs_stand(trt: Target) -> None:
    model = layer()
    plan = planned(model, trt, FP8, data=noise(model))
    edges = {str(edge) for edge, choice in plan.edges.items() if isinstance(choice.storage, QParams)}
    products = {f"{node}:{index}" for node in ("to_q", "to_k", "to_v", "scores", "mix", "out") for index in (0, 1)}
    assert edges == products  # both operands of every product; nothing on scores, norm, residual
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
def test_where_the_pairs_stand_in_the_file(precision: str, constant: float, trt: Target, tmp_path: Path) -> None:
    model = layer(masked=True)
    (artifact,) = trt.backend.emit(model, planned(model, trt, PRECISIONS[precision], data=noise(model)), tmp_path)
    emitted = ir.load(artifact.path).graph
    # A LayerNorm is quantized once, and what is read back goes to q, k and v.
    norm = next(node for node in emitted if node.op_type == "LayerNormalization").outputs[0]
    (store,) = [user for user, _ in norm.uses()]
    (read,) = [user for user, _ in store.outputs[0].uses()]
    assert [store.op_type, read.op_type] == ["QuantizeLinear", "DequantizeLinear"]
    assert {user.name for user, _ in read.outputs[0].uses()} == {"to_q", "to_k", "to_v"}
    # The residual and the mask are float on both sides, and nothing stands on the scores.
    makers = {node.name: [v.producer() for v in node.inputs if v is not None] for node in emitted}
    adds = {node.name for node in emitted if node.op_type in ("Add", "Softmax")}
    assert not {maker.op_type for name in adds for maker in makers[name] if maker is not None} & {"DequantizeLinear"}
    assert not any(
        user.op_type == "QuantizeLinear" for name in adds - softmaxes(emitted) for user in readers(emitted, name)
    )
    # The softmax has the named constant, as float16 holds it.
    (softmax,) = softmaxes(emitted)
    (pair,) = readers(emitted, softmax)
    assert float(constant_of(pair.inputs[1])) == np.float16(constant)  # type: ignore[arg-type]
    assert constant in (1 / 448, 1 / 127)


@pytest.mark.parametrize("precision", ["fp8", "w8a8"])
def test_the_simulation_is_what_the_file_says(precision: str, tmp_path: Path) -> None:
    """ONNX Runtime's optimizer moves and fuses pairs; the simulation must not see that."""
    model, target = layer(), open_target("tensorrt", {"compute": "fp32"})  # float16 is rounded more or less often
    data = noise(model)
    (artifact,) = target.backend.emit(model, planned(model, target, PRECISIONS[precision], data=data), tmp_path)
    sample = {name: array[0] for name, array in data.items()}
    (simulated,) = SessionRun(artifact.path, Mode.EXACT, tmp_path)([sample])
    plain = run(ir.load(artifact.path), sample)
    assert sqnr_db(plain["y"], simulated["y"]) > 100


def softmaxes(graph: ir.Graph) -> set[str | None]:
    return {node.name for node in graph if node.op_type == "Softmax"}


def readers(graph: ir.Graph, name: str | None) -> list[ir.Node]:
    node = next(one for one in graph if one.name == name)
    return [user for user, _ in node.outputs[0].uses()]


@pytest.mark.parametrize(
    ("precision", "tokens", "size", "keys", "why"),
    [
        ("fp8", 17, 32, None, "FP8 attention is fused from 32 keys on, here are 17"),
        ("w8a8", 64, 128, None, "INT8 attention is fused at head sizes 16, 32, 64, here it is 128"),
        ("w8a8", 24, 64, 513, "INT8 attention is fused up to 512 keys, here are 513"),
    ],
)
def test_sizes_without_an_8_bit_kernel_stay_in_float16(
    precision: str, tokens: int, size: int, keys: int | None, why: str, trt: Target, tmp_path: Path
) -> None:
    model = layer(tokens, size, keys)
    wanted = PRECISIONS[precision]
    compiled, read_back, plan = built(model, trt, wanted, tmp_path)
    assert rows(read_back, Outcome.CHANGED) == {}
    assert rows(read_back, Outcome.MATCHED)["o"].startswith("one attention kernel, Half ->")
    assert compiled.findings == ()
    # Asked for all the same, the kernel is lost, and the finding says why.
    forced = with_pairs(plan, model, trt, F8 if precision == "fp8" else S8)
    compiled, read_back = built_plan(model, forced, trt, tmp_path)
    (finding,) = compiled.findings
    assert finding.severity is Severity.ERROR
    assert finding.message.endswith(why)
    assert rows(read_back, Outcome.CHANGED) == {"o": f"attention is not one kernel: {why}"}


@pytest.mark.parametrize(
    ("size", "keys", "precision"),
    [(256, 32, "fp8"), (16, 512, "w8a8")],
)
def test_sizes_with_an_8_bit_kernel(size: int, keys: int, precision: str, trt: Target, tmp_path: Path) -> None:
    model = layer(8, size, keys)
    read_back = built(model, trt, PRECISIONS[precision], tmp_path)[1]
    word = WORDS[precision]
    assert rows(read_back, Outcome.MATCHED)["o"] == f"one attention kernel, {word} -> {word}"


def with_pairs(plan: Plan, model: object, target: Target, encoding: object) -> Plan:
    """The plan with 8 bit on all four operands of the attention, whatever the table says."""
    params = QParams(encoding, np.float32(0.02), np.int32(0))  # type: ignore[arg-type]
    edges = {Edge(node, index): Choice(params, Reason.PINNED) for node in ("scores", "mix") for index in (0, 1)}
    return dataclasses.replace(plan, edges={**plan.edges, **edges})


@pytest.mark.parametrize(
    ("precision", "edge", "part"),
    [
        ("fp8", "mix:0", "softmax output"),
        ("w8a8", "mix:0", "softmax output"),
        ("fp8", "mix:1", "value"),
        ("w8a8", "scores:0", "query"),
        ("fp8", "scores:1", "key"),
    ],
)
def test_an_operand_without_a_pair_is_named(precision: str, edge: str, part: str, trt: Target, tmp_path: Path) -> None:
    model = layer()
    plan = planned(model, trt, PRECISIONS[precision], data=noise(model))
    node, index = edge.split(":")
    edges = {e: c for e, c in plan.edges.items() if e != Edge(node, int(index))}
    compiled, read_back = built_plan(model, dataclasses.replace(plan, edges=edges), trt, tmp_path)
    (finding,) = compiled.findings
    assert finding.message.endswith(f"there is no pair on its {part}")
    assert rows(read_back, Outcome.CHANGED)["o"] == f"attention is not one kernel: there is no pair on its {part}"
    assert_failed(read_back)


def test_a_pair_on_the_scores_is_named(trt: Target, tmp_path: Path) -> None:
    model = layer(masked=True)
    plan = planned(model, trt, FP8, data=noise(model))
    as_planned = built_plan(model, plan, trt, tmp_path)[1]
    assert rows(as_planned, Outcome.MATCHED)["o"] == "one attention kernel, FP8 -> FP8"
    add = next(node for node in model.graph if node.outputs[0].name == "s1")
    params = QParams(F8, np.float32(0.02), np.int32(0))
    edges = {**plan.edges, Edge(str(add.name), 0): Choice(params, Reason.PINNED)}
    read_back = built_plan(model, dataclasses.replace(plan, edges=edges), trt, tmp_path)[1]
    why = f"there is a pair on the scores, in front of Add {add.name!r}"
    assert rows(read_back, Outcome.CHANGED)["o"] == f"attention is not one kernel: {why}"


def test_a_nan_guard_breaks_it_and_is_taken_out(trt: Target, tmp_path: Path) -> None:
    model = layer(guarded=True)
    stats = observe(model, trt, noise(model))
    plan = make_plan(model, trt.table, stats, Request(FP8))
    compiled, read_back = built_plan(model, plan, trt, tmp_path)
    where = next(node.name for node in model.graph if node.op_type == "Where")
    why = f"the Where {where!r} that replaces NaN stands between softmax and product"
    (finding,) = compiled.findings
    assert finding.severity is Severity.ERROR
    assert finding.message == f"attention is not one kernel in FP8 (in float16 it is): {why}"
    assert rows(read_back, Outcome.CHANGED)["o"] == f"attention is not one kernel: {why}"
    assert_failed(read_back)
    remove_nan_guard(model)
    compiled, read_back, _ = built(model, trt, FP8, tmp_path)
    assert rows(read_back, Outcome.MATCHED)["o"] == "one attention kernel, FP8 -> FP8"
    assert compiled.findings == ()
    assert fidelity(read_back, Thresholds()).status is Status.PASS


def test_int8_needs_a_pair_behind_it_too(trt: Target, tmp_path: Path) -> None:
    model = layer()
    for precision, why in ((W8A8, "there is no pair on its output, which INT8 needs"), (FP8, "")):
        plan = planned(model, trt, precision, data=noise(model))
        edges = {e: c for e, c in plan.edges.items() if e.node != "out"}
        compiled, _ = built_plan(model, dataclasses.replace(plan, edges=edges), trt, tmp_path)
        assert [finding.message.rpartition(": ")[2] for finding in compiled.findings] == ([why] if why else [])


def test_an_operand_in_float_where_8_bit_was_planned_is_seen(trt: Target, tmp_path: Path) -> None:
    """A product of which only one operand has a pair is computed in float16, without a word."""
    model = layer()
    plan = planned(model, trt, FP8, data=noise(model))
    lone = {e: Choice(IN_FLOAT32, Reason.PINNED) if e == Edge("out", 1) else c for e, c in plan.edges.items()}
    read_back = built_plan(model, dataclasses.replace(plan, edges=lone), trt, tmp_path)[1]
    assert "FP8" in rows(read_back, Outcome.CHANGED)["out:0"]
    assert_failed(read_back)
