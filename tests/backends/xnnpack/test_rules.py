"""Every XNNPACK case of every rule on the real lowering and runtime: bad cases do not run as written, good cases do.

The head of a case states the expected result: ``not lowered`` (it has no mapping to torch), ``rejected`` (at load, or
by the lowering to XNNPACK), ``differs`` (the outputs are not those of the simulation), ``changed`` (a planned storage
was read back as something else), ``not delegated`` (no node of it is delegated), ``inaccurate`` (as planned, but the
outputs are far from those of the float graph) or ``as planned``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from dovetail import rule_docs as docs
from dovetail.backend import Outcome
from dovetail.catalog import all_rules, find_rule
from dovetail.errors import InputError
from dovetail.model.read import read
from dovetail.model.write import write as save_model
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.invert import invert, is_quantized
from dovetail.rules.check import check
from dovetail.rules.check_input import CheckInput
from dovetail.storage import Plan
from dovetail.targets import open_target
from tests.backends.xnnpack.lowering import lower, lowered
from tests.equality import random_inputs, run, sqnr_db
from tests.rules.cases import head_of, write

pytest.importorskip("executorch", reason="needs the package executorch")

INACCURATE_DB, TOGETHER_DB = 10.0, 40.0
# At load, and in two steps of the lowering.
REJECTIONS = ("Failed to load method", "Missing out variants", "Unable to resolve static quantized tensor dtype")


def _cases() -> list[Any]:
    cases = []
    for rule in all_rules():
        for kind in ("bad", "good"):
            for name, text in docs.case_texts(rule.code, kind).items():
                if head_of(text).get("target") == "xnnpack":
                    cases.append(pytest.param(kind, text, id=name))
    return cases


def _outcome(text: str, folder: Path) -> str:
    target, raw = open_target("xnnpack"), read(write(text, folder))
    model, plan = invert(raw) if is_quantized(raw) else (raw, Plan("xnnpack", "fp32", {}))
    infer_shapes(model)
    try:
        program = lowered(model, plan, target, folder)
    except InputError as error:
        return "not lowered" if "has no mapping to torch" in str(error) else str(error)
    except ValueError as error:
        return "rejected" if "Unsupported dtype for quantization" in str(error) else str(error)
    except RuntimeError as error:
        return "rejected" if any(part in str(error) for part in REJECTIONS) else str(error)
    inputs = random_inputs(model)
    outputs, simulated, in_float = program.run(inputs), program.simulate(inputs), run(model, inputs)
    if min(sqnr_db(simulated[name], outputs[name]) for name in outputs) < TOGETHER_DB:
        return "differs"
    if any(row.outcome is Outcome.CHANGED for row in program.read_back.tensors):
        return "changed"
    if {row["node"] for row in program.census["outside"]} == {node.name for node in model.graph}:
        return "not delegated"
    assert program.census["outside"] == []
    worst_db = min(sqnr_db(in_float[name], outputs[name]) for name in outputs)
    return "inaccurate" if worst_db < INACCURATE_DB else "as planned"


@pytest.mark.parametrize(("kind", "text"), _cases())
def test_a_case_has_the_result_that_its_head_states(kind: str, text: str, tmp_path: Path) -> None:
    expected = head_of(text)["compiled"]
    assert (expected == "as planned") is (kind == "good")
    assert _outcome(text, tmp_path) == expected


RESIZE = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,2,4,4] x) => (float[1,2,8,8] y) <float s = {0.05}, int8 z = {3}, float r_s = {0.0123},
 float[4] f = {1,1,2,2}>
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = Resize<mode = "linear">(d, , f)
  r_q = QuantizeLinear(r, r_s, z) y = DequantizeLinear(r_q, r_s, z) }"""


def test_a_resize_between_qdq_pairs_runs_in_float(tmp_path: Path) -> None:
    """Q131: XNNPACK transposes in int8 around it, so that the pairs themselves are read back as planned."""
    target, (model, plan) = open_target("xnnpack"), invert(read(write(RESIZE, tmp_path)))
    infer_shapes(model)
    assert "Q131" in {finding.code for finding in check(CheckInput(model, target.table, plan=plan), target.rules)}
    assert "StaticResizeBilinear2D fp32 -> fp32" in lowered(model, plan, target, tmp_path).kinds()


def test_there_are_cases() -> None:
    assert len(_cases()) >= 9


UNARY = (
    "Abs Ceil Celu Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Log Mish Neg Reciprocal Relu "
    "Round Selu Sigmoid Sign Sin Softmax Softplus Softsign Sqrt Tanh ThresholdedRelu GlobalAveragePool "
    "GlobalMaxPool Flatten"
)
OTHERS = """c0 = Clip(x, lo, hi)  p0 = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)  k0 = Concat<axis=1>(x, z)
    p1 = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)  d0 = DepthToSpace<blocksize=2>(x)  m0 = ReduceMean(x, hw)
    d1 = SpaceToDepth<blocksize=2>(x)  q0 = Squeeze(x, zero)  u0 = Unsqueeze(x, one)  t0 = Transpose<perm=[0,2,3,1]>(x)
    p2 = Pad(x, pads)  g0 = Gather<axis=1>(x, first)  g1 = Gather<axis=1>(x, some)
    r0 = Resize<mode="linear">(x,, twice)  a0 = MatMul(x, w)  s0, s1 = Split<axis=1>(x, two)  m1 = ReduceMean(x, one)
    r1 = Resize(x,, twice)  n0 = LayerNormalization(x, eight, eight)  n1 = InstanceNormalization(x, four, four)
    n2 = GroupNormalization<num_groups=2>(x, four, four)  m2 = ReduceSum<keepdims=0>(x, one)  m3 = ReduceL2(x, hw)
    m5 = ReduceSum<keepdims=0>(x, hw)
    m4 = ReduceMax(x, hw)  e0 = Expand(u0, five)  o0 = Softmax<axis=1>(x)  t1 = Tile(x, twos)
    r2 = Resize<coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x,, half)
    r3 = Resize<mode="cubic">(x,, half)  m6 = ReduceMax(x, one)  m7 = ReduceL1(x, hw)  m8 = ReduceSumSquare(x, hw)
    m9 = ReduceMin(x, hw)  w0 = Pow(x, lo)  w1 = Pow(x, square)  l0 = PRelu(x, eight)  v0 = Sum(x, z)  v1 = Mean(x, z)
    p3 = MaxPool<kernel_shape=[2,2], strides=[3,3]>(x)
    p4 = AveragePool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x)"""
CONSTANTS = """float lo = {-1}, float hi = {1}, int64[1] zero = {0}, int64[1] one = {1}, int64[2] hw = {2,3},
    int64 first = {0}, float square = {2},
    int64[8] pads = {0,0,1,1,0,0,1,1}, int64[2] two = {2,2}, int64[2] some = {0,3},
    float[4] twice = {1,1,2,2}, float[4] half = {1,1,1.5,1.5},
    int64[5] five = {1,3,4,6,8}, int64[4] twos = {1,2,1,2},
    float[4] four = {1,2,3,4}, float[8] eight = {1,2,3,4,5,6,7,8}"""


def test_the_rule_agrees_with_the_partitioner_on_every_operator(tmp_path: Path) -> None:
    nodes = [f"one{number} = {op}(x)" for number, op in enumerate(UNARY.split())]
    nodes += [
        f"two{number} = {op}(x, z)" for number, op in enumerate(("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"))
    ]
    body = " ".join((*nodes, OTHERS))
    outputs = ", ".join(f"float[1] {name}" for name in ("s0", *re.findall(r"(\w+) = ", body)))
    text = f"g (float[1,4,6,8] x, float[1,4,6,8] z, float[1,4,8,6] w) => ({outputs}) <{CONSTANTS}> {{ {body} }}"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    model = ir.from_proto(proto)
    for node in model.graph:
        node.name = f"{node.op_type} {node.outputs[0].name}"
    infer_shapes(model)
    census = lower(save_model(model, tmp_path / "model.onnx")[0], tmp_path)
    undelegated = {row["node"].split()[1] for row in census["outside"]}
    findings = check(CheckInput(model, open_target("xnnpack").table), [find_rule("Q431")])
    assert {str(finding.place) for finding in findings} == undelegated
    assert len(undelegated) == 10


POOL = "AveragePool<ceil_mode=1, kernel_shape=[2,2], strides=[2,2]>(x)"
STEPS = "<int64[1] s = {0}, int64[1] e = {9}, int64[1] a = {0}, int64[1] t = {2}>"
OPEN = "g (float[1,2,n,m] x) => (float[1,2,8,8] y) <int64[4] z = {1,2,8,8}>"


@pytest.mark.parametrize(
    ("text", "undelegated"),
    [
        (f'{OPEN} {{ y = Resize<mode="nearest">(x, , , z) }}', 1),
        ("g (int64[1,4] x) => (int64[3,4] y) <int64[2] z = {3,4}> { y = Expand(x, z) }", 1),
        ("g (float[1,4] x) => (float[3,4] y) <int64[2] z = {3,4}> { y = Expand(x, z) }", 0),
        (f"g (float[1,2,5,5] x) => (float[1,2,3,3] y) {{ y = {POOL} }}", 0),
        (f"g (float[n,4] x) => (float[m,4] y) {STEPS} {{ y = Slice(x, s, e, a, t) }}", 1),
        (f"g (float[6,4] x) => (float[3,4] y) {STEPS} {{ y = Slice(x, s, e, a, t) }}", 0),
    ],
)
def test_shapes_and_types_decide_what_is_delegated(text: str, undelegated: int) -> None:
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}'))
    infer_shapes(model)
    assert len(list(check(CheckInput(model, open_target("xnnpack").table), [find_rule("Q431")]))) == undelegated
