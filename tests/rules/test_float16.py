"""Q511 on statistics and plans: what is in float16, what a mask sets, and what is not known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dovetail.catalog import find_rule
from dovetail.encoding import DType, Encoding, QParams
from dovetail.finding import Finding
from dovetail.model.read import read
from dovetail.op_support import OpTable
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.rules.check import check
from dovetail.rules.check_input import CheckInput
from dovetail.stats import DataInfo, Stats, TensorStats
from dovetail.storage import Choice, FloatStorage, Plan, Reason, Storage
from dovetail.targets import open_target
from tests.rules.cases import write

HTP, TENSORRT = open_target("qnn-htp:sm8550").table, open_target("tensorrt").table
F16 = FloatStorage(DType.F16)
WIDE = (-100000.0, 2.0)
HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
ADD = "g (float[1,4] x) => (float[1,4] y) { m = Add(x, x) y = READER(m) }"
SQUARE = "g (float[1,4] x) => (float[1,4] y) { r = Identity(x) m = Mul(r, r) y = Neg(m) }"


def found(
    text: str, folder: Path, *, table: OpTable = HTP, stats: Stats | None = None, **storages: Storage
) -> list[str]:
    """The tensors that Q511 reports; those without a storage are float16."""
    return [str(finding.place) for finding in findings(text, folder, table=table, stats=stats, **storages)]


def findings(
    text: str, folder: Path, *, table: OpTable = HTP, stats: Stats | None = None, **storages: Storage
) -> tuple[Finding, ...]:
    model = read(write(HEAD + text, folder))
    infer_shapes(model)
    tensors = {str(v.name): F16 for v in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs))}
    choices = {name: Choice(storage, Reason.PRECISION) for name, storage in {**tensors, **storages}.items()}
    subject = replace(CheckInput(model, table, plan=Plan(table.target, "fp16", choices)), stats=stats)
    return check(subject, [find_rule("Q511")])


def ranges(**known: tuple[float, float]) -> Stats:
    return Stats({name: TensorStats(*limits) for name, limits in known.items()}, DataInfo("made up", 1, ""))


def uint16(high: float) -> QParams:
    return QParams(Encoding(DType.U16), np.float32(high / 65535), np.int32(0))


@pytest.mark.parametrize("reader", ["Softmax", "Sigmoid", "Tanh", "HardSigmoid"])
def test_a_value_that_its_only_reader_bounds_is_not_reported(reader: str, tmp_path: Path) -> None:
    assert found(ADD.replace("READER", reader), tmp_path, stats=ranges(m=WIDE)) == []


def test_a_softmax_needs_its_largest_scores(tmp_path: Path) -> None:
    assert found(ADD.replace("READER", "Softmax"), tmp_path, stats=ranges(m=(0, 100000))) == ["m"]


MASKED = """g (float[1,4] s, bool[1,4] c) => (int64[1,N] y) <float low = {-1e9}, int64[1] k = {2}>
{ m = Where(c, low, s) READS }"""
TOP_K, SMALLEST = "v, y = TopK(m, k)", "v, y = TopK<largest=0>(m, k)"
MASK = (-1e9, 5.0)
HIGH_MASK = (-5.0, 1e9)


@pytest.mark.parametrize(
    ("reads", "limits", "tensors"),
    [
        (TOP_K, MASK, []),
        (TOP_K, HIGH_MASK, ["m"]),
        (SMALLEST, HIGH_MASK, []),
        (SMALLEST, MASK, ["m"]),
        ("y = ArgMax<axis=-1>(m)", MASK, []),
        ("y = ArgMax<axis=-1>(m)", HIGH_MASK, ["m"]),
        ("y = ArgMin<axis=-1>(m)", HIGH_MASK, []),
        ("y = ArgMin<axis=-1>(m)", MASK, ["m"]),
        (f"{TOP_K} w = Softmax(m) u = Cast<to=7>(w)", MASK, []),
        (f"{TOP_K} w = Exp(m) u = Cast<to=7>(w)", MASK, ["m"]),
    ],
)
def test_what_an_ordering_does_not_select_is_not_reported(
    reads: str, limits: tuple[float, float], tensors: list[str], tmp_path: Path
) -> None:
    text = MASKED.replace("READS", reads).replace("N]", "1]" if "Arg" in reads else "2]")
    assert found(text, tmp_path, stats=ranges(m=limits)) == tensors


def test_the_values_of_a_topk_are_reported_if_they_are_used(tmp_path: Path) -> None:
    text = MASKED.replace("READS", f"{TOP_K} w = Neg(v)").replace("(int64[1,N] y)", "(int64[1,2] y, float[1,2] w)")
    assert found(text, tmp_path, stats=ranges(m=MASK)) == ["m"]


def test_an_added_mask_before_an_argmax_is_not_reported(tmp_path: Path) -> None:
    text = "g (float[1,4] s, float[1,4] mask) => (int64[1,1] y) { m = Add(s, mask) y = ArgMax<axis=-1>(m) }"
    assert found(text, tmp_path, stats=ranges(m=MASK, mask=(-1e9, 0.0))) == []


NORMS = """g (float[1,4] x) => (float[1,4] y) <int64[1] last = {-1}, float e = {0.00001}>
{ q = Mul(x, x) v = ReduceMean(q, last) a = Add(v, e) s = Sqrt(a) n = Div(x, s) p = Add(x, n)
  q2 = Mul(p, p) v2 = ReduceMean(q2, last) a2 = Add(v2, e) s2 = Sqrt(a2) y = Div(p, s2) }"""
SQUARES = ("q", "v", "a", "q2", "v2", "a2")


def test_a_chain_is_reported_once_at_its_first_tensor(tmp_path: Path) -> None:
    both = findings(NORMS, tmp_path, stats=ranges(**dict.fromkeys(SQUARES, (0.0, 1e6))))
    assert [(str(finding.place), finding.numbers["others"]) for finding in both] == [("q", 2.0), ("q2", 2.0)]
    assert all(finding.message.endswith("; 2 more computed from it") for finding in both)


def test_a_chain_goes_through_every_operator_in_float16(tmp_path: Path) -> None:
    known = dict.fromkeys((*SQUARES, "x", "p"), (0.0, 1e6))
    (one,) = findings(NORMS, tmp_path, stats=ranges(**known))
    assert (str(one.place), one.numbers["others"]) == ("x", 7.0)


def test_tensors_that_are_added_are_two_chains(tmp_path: Path) -> None:
    text = "g (float[1,4] x, float[1,4] z) => (float[1,4] y) { m = Add(x, z) y = Neg(m) }"
    both = findings(text, tmp_path, stats=ranges(**dict.fromkeys("xzmy", (0.0, 1e5))))
    assert [(str(finding.place), finding.numbers["others"]) for finding in both] == [("x", 2.0), ("z", 0.0)]
    assert "more" not in both[1].message


@pytest.mark.parametrize("reader", ["Neg", "Relu", "Exp"])
def test_a_value_that_is_read_as_it_is_is_reported(reader: str, tmp_path: Path) -> None:
    assert found(ADD.replace("READER", reader), tmp_path, stats=ranges(m=WIDE)) == ["m"]


@pytest.mark.parametrize(("high", "tensors"), [(255.0, []), (257.0, ["m"])])
def test_a_square_is_reported_by_the_scale_of_its_input(high: float, tensors: list[str], tmp_path: Path) -> None:
    assert found(SQUARE, tmp_path, x=uint16(high), r=uint16(high)) == tensors


def test_measured_squares_count_more_than_the_scale_of_their_input(tmp_path: Path) -> None:
    assert found(SQUARE, tmp_path, stats=ranges(m=(0.0, 1.0)), x=uint16(300.0), r=uint16(300.0)) == []


def test_what_is_between_fused_operators_is_not_stored(tmp_path: Path) -> None:
    model = read(write(HEAD + SQUARE, tmp_path))
    infer_shapes(model)
    choices = {name: Choice(F16, Reason.PRECISION) for name in ("x", "r", "y")}
    plan = Plan("qnn-htp", "fp16", {**choices, "m": Choice(F16, Reason.INTERIOR)})
    subject = CheckInput(model, HTP, plan=plan, stats=ranges(m=(0.0, 1e6)))
    assert check(subject, [find_rule("Q511")]) == ()


def test_integers_have_no_such_limit(tmp_path: Path) -> None:
    stored = {name: uint16(1e6) for name in ("x", "r", "m", "y")}
    assert found(SQUARE, tmp_path, **stored) == []


def test_a_target_that_computes_in_float32_has_no_such_limit(tmp_path: Path) -> None:
    table = open_target("tensorrt", {"compute": "fp32"}).table
    assert found(SQUARE, tmp_path, table=table, stats=ranges(m=(0.0, 1e6))) == []
    assert found(SQUARE, tmp_path, table=TENSORRT, stats=ranges(m=(0.0, 1e6))) == ["m"]


def test_without_ranges_nothing_is_reported(tmp_path: Path) -> None:
    for text in (SQUARE, "g (float[n] x) => (float y) { y = ReduceL2<keepdims=0>(x) }"):
        assert found(text, tmp_path) == []
