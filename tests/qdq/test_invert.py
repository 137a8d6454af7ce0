"""Inverting small QDQ graphs: the float graph and plan of each, and that emitting them is bit-identical."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.model.origin import origin_of
from dovetail.model.read import read
from dovetail.qdq.invert import invert, is_quantized
from dovetail.storage import Reason
from tests.qdq.qdq_numbers import COLUMNS, QPARAMS, WEIGHT, Case, grid
from tests.qdq.round_trip import round_trip, text_model

ACTIVATIONS: dict[str, Case] = {
    "one pair for all consumers": (
        """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        [a] u = Relu(d) [b] v = Neg(d) [o] y = Add(u, v)""",
        ["Relu", "Neg", "Add"],
        {"x"},
        {},
    ),
    "the same pair once per consumer": (
        """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        q1 = QuantizeLinear(x, s, z) d1 = DequantizeLinear(q1, s, z) d2 = DequantizeLinear(q1, s, z)
        [a] u = Relu(d) [b] v = Neg(d1) [o] y = Sum(u, v, d2)""",
        ["Relu", "Neg", "Sum"],
        {"x"},
        {},
    ),
    "one consumer reads the float values": (
        """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        [a] u = Relu(d) [b] v = Neg(x) [o] y = Add(u, v)""",
        ["Relu", "Neg", "Add"],
        set(),
        {"a:0": "uint8"},
    ),
    "consumers read different pairs": (
        """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        q1 = QuantizeLinear(x, h, zh) d1 = DequantizeLinear(q1, h, zh)
        [a] u = Relu(d) [b] v = Neg(d1) [c] w = Abs(d1) [o] y = Sum(u, v, w)""",
        ["Relu", "Neg", "Abs", "Sum"],
        set(),
        {"a:0": "uint8", "b:0": "uint16", "c:0": "uint16"},
    ),
    "a conversion after the tensor's own pair": (
        """[r] r = Relu(x) q = QuantizeLinear(r, s, z) d = DequantizeLinear(q, s, z)
        q1 = QuantizeLinear(d, h, zh) d1 = DequantizeLinear(q1, h, zh)
        [a] u = Neg(d) [o] y = Add(u, d1)""",
        ["Relu", "Neg", "Add"],
        {"r"},
        {"o:1": "uint16"},
    ),
    "the same pair twice in a row": (
        """[r] r = Relu(x) q = QuantizeLinear(r, s, z) d = DequantizeLinear(q, s, z)
        q1 = QuantizeLinear(d, s, z) d1 = DequantizeLinear(q1, s, z) [o] y = Neg(d1)""",
        ["Relu", "Neg"],
        {"r"},
        {"o:0": "uint8"},
    ),
    "three pairs in a row": (
        """[r] r = Relu(x) q = QuantizeLinear(r, s, z) d = DequantizeLinear(q, s, z)
        q1 = QuantizeLinear(d, h, zh) d1 = DequantizeLinear(q1, h, zh)
        q2 = QuantizeLinear(d1, t, zt) d2 = DequantizeLinear(q2, t, zt) [o] y = Neg(d2)""",
        ["Relu", "Identity", "Neg"],
        {"r", "r/Identity"},
        {"o:0": "uint8"},
    ),
    "a pair for an output and a consumer": (
        """[r] r = Relu(x) q = QuantizeLinear(r, s, z) y = DequantizeLinear(q, s, z) [o] w = Neg(y)""",
        ["Relu", "Neg"],
        {"y"},
        {},
    ),
    "a quantized output whose float values have a consumer": (
        """[r] r = Relu(x) q = QuantizeLinear(r, s, z) y = DequantizeLinear(q, s, z) [o] w = Neg(r)""",
        ["Relu", "Identity", "Neg"],
        {"y"},
        {},
    ),
    "the float and the quantized values as outputs": (
        """[r] w = Relu(x) q = QuantizeLinear(w, s, z) y = DequantizeLinear(q, s, z)""",
        ["Relu", "Identity"],
        {"y"},
        {},
    ),
    "two outputs of one pair": (
        """[r] r = Relu(x) q = QuantizeLinear(r, s, z) y = DequantizeLinear(q, s, z) w = DequantizeLinear(q, s, z)""",
        ["Relu", "Identity"],
        {"y"},
        {},
    ),
    "only a pair": (
        """q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)""",
        ["Identity"],
        {"x"},
        {},
    ),
    "a pair without consumers": (
        """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) dead = Neg(d) [o] y = Relu(x)""",
        ["Relu"],
        set(),
        {},
    ),
    "a Q without a DQ": ("q = QuantizeLinear(x, s, z) [o] y = Relu(x)", ["Relu"], set(), {}),
    "no zero point": (
        "q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) [o] y = Relu(d)",
        ["Relu"],
        {"x"},
        {},
    ),
    "a node that reads a value twice, once quantized": (
        "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) [o] y = Add(d, x)",
        ["Add"],
        set(),
        {"o:0": "uint8"},
    ),
    "ONNX Runtime's own domain": (
        """q = com.microsoft.QuantizeLinear(x, h, zh) d = com.microsoft.DequantizeLinear(q, h, zh)
        [o] y = Relu(d)""",
        ["Relu"],
        {"x"},
        {},
    ),
    "the dtype as an attribute": (
        "q = QuantizeLinear<output_dtype=3>(x, s) d = DequantizeLinear(q, s) [o] y = Relu(d)",
        ["Relu"],
        {"x"},
        {},
    ),
    "data-movement operators on integers": (
        """q = QuantizeLinear(x, s, z) m = Transpose<perm=[1,0]>(q) n = Reshape(m, shape)
        d = DequantizeLinear(n, s, z) [o] y = Relu(d)""",
        ["Transpose", "Reshape", "Relu"],
        {"x"},
        {},
    ),
    "Split and Concat on integers": (
        """q = QuantizeLinear(x, s, z) [p] m, n = Split<axis=0, num_outputs=2>(q) c = Concat<axis=0>(n, m)
        e = DequantizeLinear(c, s, z) d = DequantizeLinear(q, s, z) [o] y = Add(e, d)""",
        ["Split", "Concat", "Add"],
        {"x"},
        {},
    ),
    "a data-movement operator on integers before an output": (
        "q = QuantizeLinear(x, s, z) m = Transpose<perm=[1,0]>(q) y = DequantizeLinear(m, s, z)",
        ["Transpose"],
        {"x"},
        {},
    ),
}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_activations(case: str, tmp_path: Path) -> None:
    body, ops, tensors, edges = ACTIVATIONS[case]
    outputs = ", ".join(f"float[a_{name}, b_{name}] {name}" for name in ("y", "w") if f" {name} = " in f" {body}")
    text = f"g (float[4,6] x) => ({outputs}) <int64[2] shape = {{3,8}}> {{ {body} }}"
    trip = round_trip(text_model(tmp_path, text, **QPARAMS))
    assert trip.ops() == ops
    assert trip.quantized_tensors() == tensors
    assert trip.edges() == edges


INTEGER_IO: dict[str, Case] = {
    "both ends": (
        """(uint8[4,6] x) => (uint8[4,6] y) { d = DequantizeLinear(x, s, z) [r] r = Relu(d)
        y = QuantizeLinear(r, t, zt) }""",
        ["Relu"],
        {"x", "y"},
        {},
    ),
    "also a float output": (
        """(uint8[4,6] x) => (uint8[4,6] y, float[4,6] w) { d = DequantizeLinear(x, s, z) [r] r = Relu(d)
        y = QuantizeLinear(r, t, zt) w = DequantizeLinear(y, t, zt) }""",
        ["Relu", "Identity"],
        {"x", "y"},
        {},
    ),
    "also a quantized value as a float output": (
        """(uint8[4,6] x) => (uint8[4,6] y, float[4,6] w) { d = DequantizeLinear(x, s, z) [r] r = Relu(d)
        y = QuantizeLinear(r, t, zt) [n] n = Neg(d) q = QuantizeLinear(n, t, zt) w = DequantizeLinear(q, t, zt) }""",
        ["Relu", "Neg", "Identity"],
        {"x", "y", "n"},
        {},
    ),
    "a float input with a pair": (
        """(float[4,6] x) => (uint8[4,6] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        [r] r = Relu(d) y = QuantizeLinear(r, t, zt) }""",
        ["Relu"],
        {"y"},
        {"r:0": "uint8"},
    ),
    "an integer output that also has a consumer": (
        """(uint8[4,6] x) => (uint8[4,6] y, float[4,6] w) { d = DequantizeLinear(x, s, z) [r] r = Relu(d)
        y = QuantizeLinear(r, t, zt) e = DequantizeLinear(y, t, zt) [n] w = Neg(e) }""",
        ["Relu", "Neg"],
        {"x", "y"},
        {},
    ),
    "the float values have a consumer too": (
        """(uint8[4,6] x) => (uint8[4,6] y, float[4,6] w) { d = DequantizeLinear(x, s, z) [r] r = Relu(d)
        y = QuantizeLinear(r, t, zt) [n] w = Neg(r) }""",
        ["Relu", "Identity", "Neg"],
        {"x", "y"},
        {},
    ),
    "two integer outputs of one value": (
        """(uint8[4,6] x) => (uint8[4,6] y, uint8[4,6] w) { d = DequantizeLinear(x, s, z) [r] r = Relu(d)
        y = QuantizeLinear(r, t, zt) w = QuantizeLinear(r, t, zt) }""",
        ["Relu", "Identity", "Identity"],
        {"x", "y", "w"},
        {},
    ),
    "a constant as an integer output": (
        "(uint8[4,6] x) => (float[4,6] y, uint8 w) { y = DequantizeLinear(x, s, z) w = QuantizeLinear(s, t, zt) }",
        ["Identity", "Identity"],
        {"x", "w"},
        {},
    ),
    "requantized": (
        "(uint8[4,6] x) => (uint8[4,6] y) { d = DequantizeLinear(x, s, z) y = QuantizeLinear(d, t, zt) }",
        ["Identity"],
        {"x", "y"},
        {},
    ),
    "a data-movement operator before the DQ": (
        "(uint8[4,6] x) => (float[6,4] y) { m = Transpose(x) d = DequantizeLinear(m, s, z) [r] y = Relu(d) }",
        ["Transpose", "Relu"],
        {"x"},
        {},
    ),
    "an integer input that is not a quantized tensor": (
        """(float[4,6] x, int32[2] rows) => (float[2,6] y) { q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z) [g] y = Gather(d, rows) }""",
        ["Gather"],
        {"x"},
        {},
    ),
}


@pytest.mark.parametrize("case", INTEGER_IO)
def test_integer_inputs_and_outputs(case: str, tmp_path: Path) -> None:
    text, ops, tensors, edges = INTEGER_IO[case]
    constants = {**QPARAMS}
    if "rows" in text:
        text = text.replace("Gather(d, rows)", "Gather(d, less)").replace("[g]", "less = Mod(rows, four) [g]")
        constants["four"] = np.int32(4)
        ops = ["Mod", *ops]
    trip = round_trip(text_model(tmp_path, f"g {text}", **constants))
    assert trip.ops() == ops
    assert trip.quantized_tensors() == tensors
    assert trip.edges() == edges
    assert trip.plan.quantized_io == ("rows" not in text)
    assert all(value.dtype is not None for value in trip.model.graph.outputs)


def test_names_and_original_names(tmp_path: Path) -> None:
    text = """g (float[4,6] x) => (float[4,6] y) {
        x_q = QuantizeLinear(x, s, z) x_dq = DequantizeLinear(x_q, s, z) [r] raw = Relu(x_dq)
        q = QuantizeLinear(raw, t, zt) y = DequantizeLinear(q, t, zt) }"""
    trip = round_trip(text_model(tmp_path, text, **QPARAMS))
    (output,) = trip.model.graph.outputs
    assert output.name == "y"
    assert origin_of(output).names == ("y", "raw")
    assert {v.name for node in trip.model.graph for v in node.outputs} == {"y"}
    assert {v.name for node in trip.emitted.graph for v in node.outputs} == {"x__q", "x__dq", "y__raw", "y__q", "y"}
    assert trip.plan.precision == "as in the model"
    assert {choice.why for choice in trip.plan.tensors.values()} == {Reason.RECORDED}


def test_16_bit_before_opset_21(tmp_path: Path) -> None:
    text = """g (float[4,6] x) => (float[4,6] y) {
        q = com.microsoft.QuantizeLinear(x, h, zh) d = com.microsoft.DequantizeLinear(q, h, zh)
        r = Relu(d) e = com.microsoft.QuantizeLinear(r, h, zh) y = com.microsoft.DequantizeLinear(e, h, zh) }"""
    trip = round_trip(text_model(tmp_path, text, opset=15, **QPARAMS))
    assert trip.quantized_tensors() == {"x", "y"}
    assert all(node.domain == "" for node in trip.emitted.graph)


def test_8_bit_per_axis_before_opset_21(tmp_path: Path) -> None:
    text = """g (float[2,6] x) => (float[2,4] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        w = DequantizeLinear<axis=1>(i, k) [mm] y = MatMul(d, w) }"""
    constants = {"i": grid(np.int8), "k": COLUMNS, "s": QPARAMS["s"], "z": QPARAMS["z"]}
    trip = round_trip(text_model(tmp_path, text, opset=13, **constants))
    assert trip.quantized_tensors() == {"x"}
    assert trip.edges() == {"mm:1": "int8"}
    assert trip.emitted.opset_imports[""] >= 21


def test_transposed_integer_constant_that_is_an_output(tmp_path: Path) -> None:
    text = """g (float[4,6] x) => (float[4,6] y, int8[4,6] m) {
        m = Transpose(i) d = DequantizeLinear(i, s) t = Transpose(d) y = Add(x, t) }"""
    trip = round_trip(text_model(tmp_path, text, i=grid(np.int8), s=QPARAMS["s"]))
    assert trip.ops() == ["Transpose", "Transpose", "Add"]


def test_axis_of_an_activation(tmp_path: Path) -> None:
    text = """g (float[4,6] x) => (float[4,6] y) { r = Relu(x)
        q = QuantizeLinear<axis=-2>(r, k) d = DequantizeLinear<axis=0>(q, k) y = Neg(d) }"""
    trip = round_trip(text_model(tmp_path, text, k=COLUMNS))
    params = trip.tensor("r")
    assert params is not None
    assert params.axis == 0


def test_is_quantized(tmp_path: Path) -> None:
    assert not is_quantized(read(text_model(tmp_path, "g (float[4] x) => (float[4] y) { y = Relu(x) }")))
    text = "g (float[2,3] x) => (uint8[2,3] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }"
    assert is_quantized(read(text_model(tmp_path, text)))
    text = "g (float[2] x) => (float[2] y) { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }"
    assert is_quantized(read(text_model(tmp_path, text, s=np.float32(1))))


def test_float_model_is_its_own_inverse(tmp_path: Path) -> None:
    trip = round_trip(text_model(tmp_path, "g (float[4] x) => (float[4] y) { r = Relu(x) y = Neg(r) }"))
    assert trip.plan.tensors.keys() == {"x", "r", "y"}
    assert not trip.quantized_tensors()


QPARAM_NAMES = (("s", "z"), ("t", "zt"), ("h", "zh"))


@st.composite
def qdq_graphs(draw: st.DrawFn) -> str:
    """Graph text in which any value may be quantized any number of times, in any order, and be an output."""
    values, integers, lines, outputs = ["x"], dict[str, tuple[str, str]](), list[str](), list[str]()
    for number in range(draw(st.integers(3, 14))):
        kind = draw(st.sampled_from(["op", "quantize", "dequantize", "dequantize", "constant"]))
        name = f"v{number}"
        source = draw(st.sampled_from(values))
        if kind == "quantize":
            scale, zero_point = integers[name] = draw(st.sampled_from(QPARAM_NAMES))
            lines.append(f"{name} = QuantizeLinear({source}, {scale}, {zero_point})")
        elif kind == "dequantize" and integers:
            quantized = draw(st.sampled_from(sorted(integers)))
            scale, zero_point = integers[quantized]
            lines.append(f"{name} = DequantizeLinear({quantized}, {scale}, {zero_point})")
        elif kind == "constant":
            constant, scale = draw(st.sampled_from([("I", "r"), ("I", "p"), ("W", "")]))
            lines.append(f"{name} = DequantizeLinear({constant}, {scale})" if scale else f"{name} = Identity(W)")
        else:
            other = draw(st.sampled_from([*values, "W"]))
            lines.append(f"[n{number}] {name} = {draw(st.sampled_from(['Add', 'Sub']))}({source}, {other})")
        if name not in integers:
            values.append(name)
    candidates = [value for value in values if value != "x"]
    outputs = draw(st.lists(st.sampled_from(candidates), unique=True, max_size=3)) if candidates else []
    if integers and draw(st.booleans()):
        outputs += draw(st.lists(st.sampled_from(sorted(integers)), unique=True, max_size=2))
    last = f"last = Sum({', '.join(values)})"
    types = {name: {"z": "uint8", "zt": "uint8", "zh": "uint16"}[names[1]] for name, names in integers.items()}
    declared = ", ".join(f"{types.get(name, 'float')}[6,4] {name}" for name in [*outputs, "last"])
    return f"g (float[6,4] x) => ({declared}) {{ {' '.join(lines)} {last} }}"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=qdq_graphs())
def test_any_qdq_graph_is_bit_identical_after_a_round_trip(text: str, tmp_path: Path) -> None:
    constants = {**QPARAMS, "W": WEIGHT, "I": grid(np.int8), "r": np.float32(0.03), "p": np.float32(0.01)}
    round_trip(text_model(tmp_path, text, **constants), seeds=(0,))


def test_inverting_does_not_change_the_model(tmp_path: Path) -> None:
    text = "g (uint8[4] x) => (float[4] y) { d = DequantizeLinear(x, s, z) y = Relu(d) }"
    model = read(text_model(tmp_path, text, **QPARAMS))
    names = [value.name for node in model.graph for value in node.outputs]
    invert(model)
    assert [value.name for node in model.graph for value in node.outputs] == names
    assert str(model.graph.inputs[0].dtype) == "UINT8"
