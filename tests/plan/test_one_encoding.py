"""Plans for a format with one encoding per tensor: no consumer reads a tensor in another encoding than it has."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from dovetail.edge import Edge
from dovetail.encoding import DType, Encoding, QParams
from dovetail.errors import InputError
from dovetail.numerics.affine import dequantize
from dovetail.op_support import A8, A16, FP16, W8A8, W8A16, W16, OpTable, Precision
from dovetail.plan.make import make_plan
from dovetail.plan.request import OperandPin, Pin, Pins, Request
from dovetail.plan.same_values import as_symmetric
from dovetail.plan.validate import validate_plan
from dovetail.stats import DataInfo, Stats, TensorStats
from dovetail.storage import Plan, Reason
from dovetail.targets import open_target
from tests.equality import model_from

TABLE = open_target("qairt:2.33/v75").table


def planned(
    text: str,
    pins: Collection[str] = (),
    table: OpTable = TABLE,
    precision: Precision = W8A16,
    tensors: Collection[str] = (),
) -> Plan:
    """The plan of a graph in which some operators, and some tensors, are pinned to float16."""
    model = model_from(text)
    names = [str(v.name) for v in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs))]
    stats = Stats({name: TensorStats(-1.0, 3.0) for name in names}, DataInfo("test", 1, ""))
    pin = Pin(FP16, Reason.PINNED, "test")
    kept = Pins(dict.fromkeys(pins, pin), dict.fromkeys(tensors, pin))
    plan = make_plan(model, table, stats, Request(precision, pins=kept))
    validate_plan(plan, model, table)
    return plan


def dtypes(plan: Plan) -> dict[str, str]:
    return {name: str(choice.storage.dtype) for name, choice in plan.tensors.items()}


def conversions(plan: Plan) -> set[Edge]:
    """The inputs that read an activation as other integers than its tensor has."""
    constants = {Reason.CONSTANT, Reason.BIAS}
    return {
        edge for edge, c in plan.edges.items() if isinstance(c.storage, QParams) and c.why not in constants
    }  # fmt: skip


ATTENTION = "g (float[1,4,8] x, float[1,8,4] z) => (float[1,4,4] y) { [a] q = Relu(x) [b] k = Neg(z) y = MatMul(q, k) }"


def test_a_second_operand_is_symmetric_and_has_the_values_that_are_read() -> None:
    plan = planned(ATTENTION)
    key = plan.tensors["k"].storage
    assert isinstance(key, QParams)
    assert (key.dtype, int(key.zero_point)) == (DType.U16, 32768)
    (edge,) = conversions(plan)
    assert as_symmetric(key, W16) == plan.edges[edge].storage
    query = plan.tensors["q"].storage
    assert isinstance(query, QParams)
    assert int(query.zero_point) != 32768
    other = planned(ATTENTION, table=replace(TABLE, one_encoding=False)).tensors["k"].storage
    assert isinstance(other, QParams)
    assert int(other.zero_point) != 32768


def test_a_fixed_scale_is_not_changed_and_its_reader_is_in_float() -> None:
    plan = planned(ATTENTION.replace("Neg(z)", "Sigmoid(z)"))
    assert dtypes(plan) == {"x": "uint16", "z": "uint16", "q": "uint16", "k": "uint16", "y": "float16"}
    assert not conversions(plan)


CHAIN = """g (float[1,4] x) => (float[1,4] y)
{ [a] p = Neg(x) [b] q = Sqrt(p) [c] r = Neg(q) [d] s = Relu(r) y = Neg(s) }"""


def test_a_float_tensor_is_quantized_where_it_is_written() -> None:
    plan = planned(CHAIN, ["a", "b"])
    assert dtypes(plan) == {"x": "uint16", "p": "float16", "q": "uint16", "r": "uint16", "s": "uint16", "y": "uint16"}
    assert not conversions(plan)
    assert "quantized as its consumers read it" in plan.tensors["q"].detail


def test_a_tensor_that_is_pinned_to_float_stays_in_float_and_so_do_its_readers() -> None:
    plan = planned(CHAIN, ["a", "b"], tensors=["q"])
    assert dtypes(plan) == {"x": "uint16", "p": "float16", "q": "float16", "r": "uint16", "s": "uint16", "y": "uint16"}
    assert not conversions(plan)


def test_an_operator_alone_takes_the_next_one_with_it() -> None:
    """With a quantized output, all tensors of the operator would have entries: it would compute in integers."""
    plan = planned(CHAIN, ["b"])
    assert dtypes(plan) == {"x": "uint16", "p": "uint16", "q": "float16", "r": "uint16", "s": "uint16", "y": "uint16"}
    assert not conversions(plan)
    text = CHAIN.replace("Sqrt(p)", "Reshape(p, n)").replace("(float[1,4] y)", "(float[1,4] y) <int64[2] n = {1, 4}>")
    moved = planned(text, ["a", "b"])  # the input of a Reshape would get the encoding of its output
    assert dtypes(moved)["q"] == "float16"
    assert not conversions(moved)


def test_an_operator_between_float_operators_is_in_float() -> None:
    plan = planned(CHAIN, ["a", "b", "d"])
    assert dtypes(plan) == {"x": "uint16", "p": "float16", "q": "float16", "r": "float16", "s": "uint16", "y": "uint16"}


def test_a_second_reader_keeps_what_it_reads() -> None:
    text = """g (float[1,4] x) => (float[1,4] y, float[1,4] w)
    { [a] p = Neg(x) [b] q = Sqrt(p) [c] r = Neg(q) y = Neg(r) [f] f1 = Neg(q) w = Sqrt(f1) }"""
    plan = planned(text, ["a", "b", "f"])
    assert dtypes(plan)["q"] == "float16"  # one consumer reads float
    assert not conversions(plan)


def test_eight_bit_operands_beside_a_float_one_are_in_float() -> None:
    plan = planned(ATTENTION, ["a"], precision=W8A8)
    assert (dtypes(plan)["q"], dtypes(plan)["k"]) == ("float16", "float16")
    wide = replace(TABLE, ops={**TABLE.ops, "MatMul": replace(TABLE.ops["MatMul"], narrowest_with_float=0)})
    assert dtypes(planned(ATTENTION, ["a"], table=wide, precision=W8A8))["k"] == "uint8"


@pytest.mark.parametrize("moved", ["", "[r] z = Transpose<perm=[0,2,1]>(w)"])
def test_an_eight_bit_graph_input_beside_a_float_operand_is_in_float(moved: str) -> None:
    inputs = "float[1,4,8] w" if moved else "float[1,8,4] z"
    nodes = f"[a] q = Relu(x) {moved} [mm] m = MatMul(q, z) y = Neg(m)"
    text = f"g (float[1,4,8] x, {inputs}) => (float[1,4,4] y) {{ {nodes} }}"
    plan = planned(text, ["a"], precision=W8A8)
    assert (dtypes(plan)["q"], dtypes(plan)["z"], dtypes(plan)["y"]) == ("float16", "float16", "uint8")
    assert not conversions(plan)
    assert "beside a float tensor" in plan.tensors["z"].detail


def test_an_operator_that_is_also_kept_in_float_has_no_pinned_input() -> None:
    model = model_from(ATTENTION.replace("y = MatMul", "[mm] y = MatMul"))
    stats = Stats({name: TensorStats(-1.0, 3.0) for name in "xzqky"}, DataInfo("test", 1, ""))
    narrow = OperandPin(A8, Reason.MEASURED, "test")
    pins = Pins({"a": Pin(FP16, Reason.PINNED, "test")}, operands={Edge("mm", 1): narrow})
    plan = make_plan(model, TABLE, stats, Request(W8A16, pins=pins))
    validate_plan(plan, model, TABLE)
    assert dtypes(plan)["y"] == "float16"
    assert not conversions(plan)


def test_only_such_a_format_lets_a_float_operator_write_integers() -> None:
    model, plan = model_from(CHAIN), planned(CHAIN, ["a", "b"])
    with pytest.raises(
        InputError, match="has no kernel for Sqrt 'b' that reads 'p' as float16 and writes 'q' as uint16"
    ):
        validate_plan(plan, model, replace(TABLE, one_encoding=False))


def stored_as(plan: Plan, name: str, params: QParams) -> Plan:
    """The plan with one tensor in another storage, as a person edits it."""
    return replace(plan, tensors={**plan.tensors, name: replace(plan.tensors[name], storage=params)})


EIGHT_BITS = QParams(A8, np.asarray(0.5, np.float32), np.asarray(3))


def test_an_operator_that_reads_only_integers_writes_what_its_kernel_writes() -> None:
    model, plan = model_from(CHAIN), planned(CHAIN)
    with pytest.raises(InputError, match="has no kernel for Neg 'a' that reads 'x' as uint16 and writes 'p' as uint8"):
        validate_plan(stored_as(plan, "p", EIGHT_BITS), model, TABLE)
    attention = planned(ATTENTION)
    asymmetric = replace(attention, edges={e: c for e, c in attention.edges.items() if e not in conversions(attention)})
    with pytest.raises(InputError, match=r"has no kernel for MatMul .* reads 'q' as uint16, 'k' as uint16"):
        validate_plan(asymmetric, model_from(ATTENTION), TABLE)


def test_a_float_operator_writes_integers_only_as_they_are_read() -> None:
    in_float = CHAIN.replace("(float[1,4] y)", "(float[1,4] y, float[1,4] q)")
    plan = planned(CHAIN, ["a", "b"])
    with pytest.raises(InputError, match="has no kernel for Neg 'c' that reads 'q' as uint8"):
        validate_plan(stored_as(plan, "q", EIGHT_BITS), model_from(CHAIN), TABLE)
    with pytest.raises(InputError, match="has no kernel for Sqrt 'b'"):  # a graph output is read by nobody else
        validate_plan(plan, model_from(in_float), TABLE)


@given(st.floats(2**-20, 1024, width=32), st.integers(0, 65535), st.integers(0, 65535))
def test_the_symmetric_encoding_has_exactly_the_same_values(scale: float, zero_point: int, stored: int) -> None:
    params = QParams(A16, np.asarray(scale, np.float32), np.asarray(zero_point))
    same = as_symmetric(params, W16)
    assert (same is None) == (zero_point != 32768)
    middle = as_symmetric(QParams(A16, params.scale, np.asarray(32768)), W16)
    assert middle is not None
    wide = dequantize(np.array([stored], np.uint16), QParams(A16, params.scale, np.asarray(32768)))
    signed = dequantize(np.array([stored - 32768], np.int16), middle)
    np.testing.assert_array_equal(wide, signed)
    assert as_symmetric(params, Encoding(DType.S8, symmetric=True)) is None
