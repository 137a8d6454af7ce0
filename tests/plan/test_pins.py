"""Pins: what ``--keep`` patterns match, and what the planner does with pins."""

from __future__ import annotations

import pytest

from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.errors import InputError
from dovetail.op_support import A8, FP32, W8A8, W8A16
from dovetail.plan.constraints import build_problem
from dovetail.plan.make import check_pins, make_plan, narrower
from dovetail.plan.pins import resolve_keeps
from dovetail.plan.request import Keep, OperandPin, Pin, Pins, Request
from dovetail.plan.validate import storage_on_edge, validate_plan
from dovetail.storage import IN_FLOAT32, Choice, Reason
from dovetail.targets import open_target
from dovetail.targets.ort_cpu.target import ORT_CPU
from tests.planning import graph, noise, observe, planned

LAYERS = """
    net (float[2, 4] x) => (float[2, 4] y) <int64[2] shape = {2, 4}, float[4, 4] w =
        {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}>
    { encoder_fc = MatMul(x, w)
      encoder_act = Gelu(encoder_fc)
      moved = Reshape(encoder_act, shape)
      y = Gelu(moved) }
"""
MATMUL = "net (float[4, 8] a, float[8, 4] b) => (float[4, 4] y) { p = MatMul(a, b)  y = Gelu(p) }"


@pytest.mark.parametrize(
    ("pattern", "near"),
    [("encoder_fx", "'encoder_fc'"), ("Encoder_*", "'encoder_act'"), ("fc", "'encoder_fc'"), ("zzz", None)],
)
def test_a_pattern_that_matches_nothing_is_refused_with_similar_names(pattern: str, near: str | None) -> None:
    problem = build_problem(graph(LAYERS), ORT_CPU.table)
    with pytest.raises(InputError, match="no tensor or node name matches") as caught:
        resolve_keeps(problem, [Keep(pattern, FP32)])
    _, _, similar = str(caught.value).partition("similar names: ")
    assert (near in similar) if near else not similar


def test_a_group_is_pinned_by_any_of_its_members() -> None:
    model = graph(LAYERS)
    stats = observe(model, ORT_CPU, noise(model))
    plans = [
        make_plan(
            model, ORT_CPU.table, stats, Request(W8A8, pins=Pins(groups={name: Pin(FP32, Reason.PINNED, "asked")}))
        )
        for name in ("encoder_act", "moved")
    ]
    assert plans[0].tensors["encoder_act"].storage.dtype is DType.F32
    assert plans[0].tensors["encoder_act"] == plans[1].tensors["encoder_act"]
    assert plans[0].tensors["moved"].why is Reason.PINNED
    assert isinstance(plans[0].tensors["encoder_fc"].storage, QParams)


def test_an_operand_is_pinned_to_an_encoding_in_the_table() -> None:
    htp = open_target("qnn-htp:sm8550")
    model = graph(MATMUL)
    stats = observe(model, htp, noise(model))
    wide = Request(W8A16)
    ((edge, encoding),) = narrower(model, htp.table, stats, wide).items()
    assert (edge.index, encoding) == (1, A8)
    plans = [
        make_plan(model, htp.table, stats, request)
        for request in (wide, wide.pinned(Pins(operands={edge: OperandPin(encoding, Reason.PINNED, "asked")})))
    ]
    assert [plan.edges[edge].storage.dtype for plan in plans] == [DType.S16, DType.U8]
    with pytest.raises(ValueError, match="MatMul has no signature with the encodings pinned on"):
        make_plan(
            model,
            htp.table,
            stats,
            wide.pinned(Pins(operands={Edge(edge.node, 0): OperandPin(A8, Reason.PINNED, "asked")})),
        )


def test_later_pins_win() -> None:
    first, second = (Pins({"u": Pin(p, Reason.PINNED, "")}) for p in (FP32, W8A8))
    assert (first | second).units["u"].precision is W8A8


def test_no_trial_replaces_a_pin_of_the_caller() -> None:
    caller, trial = Pins({"u": Pin(FP32, Reason.PINNED, "")}), Pins({"u": Pin(W8A8, Reason.MEASURED, "")})
    assert (caller | trial).units["u"].precision is FP32
    assert (trial | caller).units["u"].precision is FP32


ATTENTION = """
    net (float[1, 2, 64, 24] q, float[1, 2, 24, 64] k, float[1, 2, 64, 24] v) => (float[1, 2, 64, 24] y)
    { [scores] s = MatMul(q, k)  [soft] p = Softmax(s)  [mix] m = MatMul(p, v)  [act] y = Gelu(m) }
"""
NORMS = """
    net (float[2, 4] x) => (float[2, 4] y)
    <int64[2] shape = {2, 4}, float[4] g = {1, 2, 3, 4}, float[4] b = {0, 1, 0, 1},
     float[4, 4] w = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}>
    { [block_norm] n = LayerNormalization(x, g, b)
      [block_move] moved = Reshape(n, shape)
      [block_fc] f = Gemm(moved, w)
      [block_act] a = Gelu(f)
      [block_last] l = Gemm(a, w)
      [end] y = Gelu(l) }
"""


@pytest.mark.parametrize(
    ("target", "precision", "keep", "message"),
    [
        (
            "xnnpack",
            "w8a8",
            "soft=w8a8",
            "--keep soft=w8a8: Softmax 'soft' cannot be kept in w8a8 on xnnpack; possible here: w8a8-dynamic, fp32",
        ),
        (
            "xnnpack",
            "w8a8",
            "p=w8a8",
            "--keep p=w8a8: tensor 'p' cannot be kept in w8a8 on xnnpack; possible here: w8a8-dynamic, fp32",
        ),
        (
            "xnnpack",
            "w8a8",
            "[ps]=w8a8",
            r"--keep \[ps\]=w8a8: xnnpack has no w8a8 kernel for MatMul, Softmax",
        ),
        (
            "tensorrt:sm89",
            "fp8",
            "mix=w8a8",
            "--keep mix=w8a8: MatMul 'mix' cannot be kept in w8a8 on tensorrt:sm89; possible here: fp8, fp16",
        ),
        (
            "tensorrt:sm89",
            "fp8",
            "*=w8a8",
            r"--keep \*=w8a8: MatMul 'scores' cannot be kept in w8a8 on tensorrt:sm89; possible here: fp8, fp16",
        ),
        (
            "tensorrt:sm89",
            "w8a8",
            "act=fp8",
            "--keep act=fp8: Gelu 'act' cannot be kept in fp8 on tensorrt:sm89; possible here: fp16",
        ),
        (
            "tensorrt:sm89",
            "fp8",
            "y=w8a8",
            "--keep y=w8a8: tensor 'y' cannot be kept in w8a8 on tensorrt:sm89; possible here: fp16",
        ),
    ],
)
def test_a_pin_that_is_not_possible_is_refused(target: str, precision: str, keep: str, message: str) -> None:
    opened, model = open_target(target), graph(ATTENTION)
    pattern, _, name = keep.rpartition("=")
    with pytest.raises(InputError, match=f"^{message}$"):
        planned(model, opened, opened.table.precisions[precision], keep={pattern: opened.table.precisions[name]})


def test_pins_are_refused_without_statistics() -> None:
    opened, model = open_target("xnnpack"), graph(ATTENTION)
    pins = Pins({"soft": Pin(opened.table.precisions["w8a8"], Reason.PINNED, "--keep soft=w8a8")})
    with pytest.raises(InputError, match="cannot be kept in w8a8"):
        check_pins(model, opened.table, Request(FP32, pins=pins))
    check_pins(model, opened.table, Request(FP32))


def test_a_tensor_that_shares_the_quantization_of_another_pin_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^--keep moved=w8a16: Reshape 'block_move' cannot be kept in w8a16, because it shares"
    ):
        planned(graph(NORMS), ORT_CPU, keep={"n": FP32, "moved": W8A16})


@pytest.mark.parametrize("keep", ["mix", "m", "*"])
@pytest.mark.parametrize(
    ("target", "base", "name"), [("ort-cpu", "w8a8", "w8a16"), ("qnn-htp:sm8550", "w8a16", "w8a8")]
)
def test_an_operator_computes_in_the_precision_of_its_pin(target: str, base: str, name: str, keep: str) -> None:
    opened = open_target(target)
    precisions = opened.table.precisions
    plan = planned(graph(ATTENTION), opened, precisions[base], keep={keep: precisions[name]})
    assert storage_on_edge(plan, Edge("mix", 0), "p").dtype is precisions[name].activation.dtype
    assert plan.tensors["m"].storage.dtype is precisions[name].activation.dtype


@pytest.mark.parametrize("keep", ["block_fc", "f", "n", "moved", "block_*"])
def test_a_target_that_quantizes_edges_reads_the_pinned_precision(keep: str) -> None:
    opened = open_target("tensorrt:sm89")
    fp8, w8a8 = (opened.table.precisions[name] for name in ("fp8", "w8a8"))
    dtypes = [
        {str(edge): choice.storage.dtype for edge, choice in plan.edges.items()}
        for plan in (planned(graph(NORMS), opened, fp8), planned(graph(NORMS), opened, fp8, keep={keep: w8a8}))
    ]
    nodes = ("block_fc", "block_last") if keep == "block_*" else ("block_fc",)
    expected = {f"{node}:{index}": DType.S8 for node in nodes for index in (0, 1)}
    assert {dtypes[0][edge] for edge in expected} == {DType.F8E4M3}
    assert {edge: dtype for edge, dtype in dtypes[1].items() if dtype is not dtypes[0][edge]} == expected


def test_a_pattern_pins_the_operators_that_have_kernels() -> None:
    opened, model = open_target("xnnpack"), graph(NORMS)
    plan = planned(model, opened, FP32, keep={"block_*": opened.table.precisions["w8a8"]})
    dtypes = {name: plan.tensors[name].storage.dtype for name in ("n", "moved", "f", "a")}
    assert dtypes == {"n": DType.F32, "moved": DType.F32, "f": DType.S8, "a": DType.F32}
    assert plan.edges[Edge("block_fc", 0)].storage.dtype is DType.S8


@pytest.mark.parametrize("keep", ["mix", "m"])
def test_an_operator_kept_in_float_reads_quantized_tensors_in_float(keep: str) -> None:
    plan = planned(graph(ATTENTION), ORT_CPU, keep={keep: FP32})
    assert plan.tensors["p"].storage.dtype is DType.U8
    assert plan.edges[Edge("mix", 0)] == Choice(
        IN_FLOAT32, Reason.PINNED, f"--keep {keep}=fp32: MatMul computes in float"
    )
    validate_plan(plan, graph(ATTENTION), ORT_CPU.table)
