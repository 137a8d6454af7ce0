"""Relu and Clip that a quantizer folded into a range are put back, and only there."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.encoding import QParams
from dovetail.qdq.invert import invert
from dovetail.qdq.restore_activations import restore_activations
from dovetail.qdq.value_ranges import ValueRange, value_ranges
from tests.equality import changed_by, model_from, ops, random_inputs, run

EXACT_DB = 200.0
STEP = np.float32(0.02)
FROM_ZERO = np.uint8(0)


def quantized(
    body: str, *, scale: float = float(STEP), zero: np.generic = FROM_ZERO, outputs: str = "float[1,4,6,6] y"
) -> ir.Model:
    """A graph that reads x as [1,4,6,6], computes v, and quantizes it."""
    text = f"""g (float[1,4,6,6] x) => ({outputs})
    {{ {body} q = QuantizeLinear(v, s, z) d = DequantizeLinear(q, s, z) y = Identity(d) }}"""
    weight = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
    return model_from(text, s=np.float32(scale), z=zero, w=weight, one=np.float32(1), two=np.float32(2))


CONV = "v = Conv(x, w)"


@pytest.mark.parametrize("zero", [np.uint8(0), np.int8(-128), np.uint16(0), np.int16(-32768)])
@pytest.mark.parametrize(
    "body", [CONV, "v = Add(x, x)", "h = Relu(x) v = Sub(h, one)", "v = Neg(x)", "v = Mul(x, one)"]
)
def test_a_range_from_zero_on_a_signed_value_is_a_relu(body: str, zero: np.generic) -> None:
    model = quantized(body, zero=zero, scale=0.02 if zero.dtype.itemsize == 1 else 0.0001)
    after, record = changed_by(restore_activations, model, EXACT_DB)
    (site,) = record.changed
    assert site.where == "v"
    assert site.what.startswith("Relu restored after ")
    # The restored operator has the name of the tensor, because its range is that of the tensor.
    (relu,) = [node for node in after.graph if node.op_type == "Relu" and node.outputs[0].name == "v"]
    assert relu.inputs[0] is not None
    assert relu.inputs[0].name == "v/unclipped"
    plan = invert(after)[1]
    assert isinstance(plan.tensors["v"].storage, QParams)
    assert not isinstance(plan.tensors["v/unclipped"].storage, QParams)


@pytest.mark.parametrize("high", [6.0, 1.0])
def test_a_range_that_ends_at_six_or_one_is_a_clip(high: float) -> None:
    after, record = changed_by(restore_activations, quantized(CONV, scale=high / 255), EXACT_DB)
    assert [site.what for site in record.changed] == [f"Clip(0, {high:g}) restored after Conv 'Conv_0'"]
    float_model, _ = invert(after)
    sample = {"x": 9 * random_inputs(after)["x"]}
    output = run(float_model, sample)["y"]
    assert (output.min(), output.max()) == (0.0, high)


@pytest.mark.parametrize(
    "body",
    [
        "v = Relu(x)",
        "v = Sigmoid(x)",
        "v = Softmax<axis = 1>(x)",
        "v = Clip(x, one, two)",
        "h = Erf(x) v = Add(h, one)",
        "v = Mul(x, x)",
        "v = Pow(x, two)",
        "h = Abs(x) v = Transpose<perm = [0, 1, 3, 2]>(h)",
        "h = Relu(x) v = MaxPool<kernel_shape = [1, 1]>(h)",
        "h = Relu(x) k = Sigmoid(x) v = Mul(h, k)",
        "h = Relu(x) v = Div(h, two)",
        "a = QuantizeLinear(x, s, z) h = DequantizeLinear(a, s, z) v = Add(h, h)",
        "h = Conv(x, w) a = QuantizeLinear(h, s, zs) k = DequantizeLinear(a, s, zs) l = Relu(k) v = Identity(l)",
    ],
)
def test_nothing_is_inserted_where_the_value_is_never_negative(body: str) -> None:
    model = quantized(body.replace("zs", "z"))
    before = [node.op_type for node in model.graph].count("Relu")
    after, record = changed_by(restore_activations, model, EXACT_DB)
    restored = {site.where for site in record.changed}
    assert "v" not in restored
    assert [node.op_type for node in after.graph].count("Relu") == before + len(restored)


def test_a_range_that_does_not_start_at_zero_is_left_as_it_is() -> None:
    for zero in (np.uint8(1), np.uint8(128), np.int8(0)):
        assert changed_by(restore_activations, quantized(CONV, zero=zero), EXACT_DB)[1].changed == ()


def test_an_input_of_the_model_is_left_as_it_is() -> None:
    text = "g (float[4] v) => (float[4] y) { q = QuantizeLinear(v, s, z) y = DequantizeLinear(q, s, z) }"
    model = model_from(text, s=STEP, z=np.uint8(0))
    assert changed_by(restore_activations, model, EXACT_DB)[1].changed == ()


def test_a_second_consumer_and_an_output_still_read_the_unclipped_value() -> None:
    """A residual reads the Conv's own output, and so does the caller."""
    model = quantized(f"{CONV} r = Neg(v)", outputs="float[1,4,6,6] y, float[1,4,6,6] r, float[1,4,6,6] v")
    after, record = changed_by(restore_activations, model, EXACT_DB)
    assert len(record.changed) == 1
    assert ops(after).count("Relu") == 1
    sample = random_inputs(model)
    assert run(after, sample)["v"].min() < 0
    assert next(n for n in after.graph if n.op_type == "Neg").inputs[0] is after.graph.outputs[2]


def test_two_quantizations_of_one_value_are_restored_each_on_its_own() -> None:
    body = f"{CONV} b = QuantizeLinear(v, s6, z) k = DequantizeLinear(b, s6, z)"
    text = f"""g (float[1,4,6,6] x) => (float[1,4,6,6] y)
    {{ {body} q = QuantizeLinear(v, s, z) d = DequantizeLinear(q, s, z) y = Add(d, k) }}"""
    weight = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
    model = model_from(text, s=STEP, s6=np.float32(6 / 255), z=np.uint8(0), w=weight)
    after, record = changed_by(restore_activations, model, EXACT_DB)
    assert sorted(site.what.split(" restored")[0] for site in record.changed) == ["Clip(0, 6)", "Relu"]
    assert (ops(after).count("Clip"), ops(after).count("Relu")) == (1, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = Sub(one, x)", ValueRange()),
        ("h = Tanh(x) y = Mul(h, minus)", ValueRange(-2.0, 2.0)),
        ("h = Sigmoid(x) y = Sub(h, one)", ValueRange(-1.0, 0.0)),
        ("h = Sigmoid(x) k = Tanh(x) y = Concat<axis = 0>(h, k)", ValueRange(-1.0, 1.0)),
        ("h = Sigmoid(x) k = Tanh(x) y = Max(h, k)", ValueRange(0.0, 1.0)),
        ("h = Sigmoid(x) k = Add(h, one) y = Div(one, k)", ValueRange(0.5, 1.0)),
        ("h = Relu(x) k = Neg(h) y = ReduceSum(k)", ValueRange()),
        ("h = Sigmoid(x) k = Add(h, one) y = Pad(k, pads)", ValueRange(0.0, 2.0)),
        ('h = Sigmoid(x) y = Resize<mode = "cubic">(h, , sizes)', ValueRange()),
        ('h = Sigmoid(x) y = Resize<mode = "linear">(h, , sizes)', ValueRange(0.0, 1.0)),
        ("h = Sigmoid(x) y = Where(b, h, minus)", ValueRange(-2.0, 1.0)),
        ("h = QuantizeLinear(x, one, z) y = DequantizeLinear(h, one, z)", ValueRange(-3.0, 252.0)),
    ],
)
def test_ranges_of_values(text: str, expected: ValueRange) -> None:
    """The ranges hold on samples: nothing that the graph computes is outside."""
    model = model_from(
        f"g (float[1,1,4,4] x) => (y) {{ {text} }}",
        one=np.float32(1),
        minus=np.float32(-2),
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        sizes=np.array([1, 1, 2, 2], np.float32),
        b=np.array([True, False, True, False]),
        z=np.uint8(3),
    )
    assert value_ranges(model.graph).get(model.graph.outputs[0], ValueRange()) == expected
    output = run(model, {"x": 5 * random_inputs(model)["x"]})["y"]
    assert expected.low <= output.min() <= output.max() <= expected.high
