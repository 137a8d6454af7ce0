"""QDQ models that cannot be inverted: one error message that names the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dovetail.errors import InputError
from dovetail.model.read import read
from dovetail.qdq.invert import invert
from tests.qdq.round_trip import text_model

CONSTANTS: dict[str, Any] = {
    "s": np.float32(0.05),
    "z": np.uint8(120),
    "t": np.float32(0.11),
    "zero": np.float32(0),
    "nan": np.float32("nan"),
    "half": np.float16(0.05),
    "row": np.ones(4, np.float32),
    "z3": np.zeros(3, np.uint8),
    "three": np.ones(3, np.float32),
    "i": np.ones((4, 4), np.int8),
    "i32": np.ones((4, 4), np.int32),
    "z32": np.int32(3),
    "e5": np.ones((4, 4), ml_dtypes.float8_e5m2),
    "f8": np.ones((4, 4), ml_dtypes.float8_e4m3fn),
    "zf8": np.float32(1).astype(ml_dtypes.float8_e4m3fn),
    "yes": np.bool_(True),
    "five": np.int64([5]),
}
PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
# Body that ends in y, and the error message, with the node's name first.
REFUSED = {
    "another scale": (
        "q = QuantizeLinear(x, s, z) [dq] y = DequantizeLinear(q, t, z)",
        "'dq': its scale or zero point differs from that of QuantizeLinear",
    ),
    "other type": ("[q] q = QuantizeLinear(x, s, z) [m] n = Cast<to=3>(q) y = DequantizeLinear(n, s)", "Cast 'm'"),
    "computed scale": (
        "[n] c = ReduceMax(x) [q] q = QuantizeLinear(x, c, z) y = Cast<to=1>(q)",
        "'q': its scale is not a",
    ),
    "computed zero point": (
        "[c] c = CastLike(s, z) c2 = Add(c, c) [q] q = QuantizeLinear(x, s, c2) y = Cast<to=1>(q)",
        "'q': its zero point is not a constant",
    ),
    "scale of zero": (
        "[q] q = QuantizeLinear(x, zero, z) y = DequantizeLinear(q, zero, z)",
        "'q': its scale must be finite and above zero",
    ),
    "scale of NaN": (
        "[q] q = QuantizeLinear(x, nan, z) y = DequantizeLinear(q, nan, z)",
        "'q': its scale must be finite and above zero",
    ),
    "half precision": (
        "h = Cast<to=10>(x) [q] q = QuantizeLinear(h, half, z) d = DequantizeLinear(q, half, z) y = Cast<to=1>(d)",
        "'q': its float values are FLOAT16",
    ),
    "half precision constant": (
        "[dq] d = DequantizeLinear(i, half) e = Cast<to=1>(d) y = Add(x, e)",
        "'dq': its float values are FLOAT16",
    ),
    "integers computed on": (
        "[q] q = QuantizeLinear(x, s, z) [m] m = Max(q, q) y = DequantizeLinear(m, s, z)",
        "QuantizeLinear 'q': its integers are read by Max 'm'",
    ),
    "integers made by an operator": (
        "[c] c = Cast<to=3>(x) [dq] y = DequantizeLinear(c, s)",
        "DequantizeLinear 'dq' reads the output of Cast 'c'; supported are",
    ),
    "transposed with scales per axis": (
        "[q] q = QuantizeLinear(x, row) [m] m = Transpose(q) y = DequantizeLinear(m, row)",
        "QuantizeLinear 'q': its integers are read by Transpose 'm'",
    ),
    "transposed and read without a DQ": (
        f"{PAIR} [m] m = Transpose(q) e = DequantizeLinear(m, s, z) c = Cast<to=1>(m) y = Sum(d, e, c)",
        "its integers are read by Transpose 'm'",
    ),
    "dynamic": (
        "[dyn] q, c, w = DynamicQuantizeLinear(x) y = DequantizeLinear(q, c, w)",
        "node 'dyn' (DynamicQuantizeLinear) computes on integers",
    ),
    "integer operators": (
        f"{PAIR} [mm] m = MatMulInteger(q, q) e = Cast<to=1>(m) y = Add(e, d)",
        "node 'mm' (MatMulInteger) computes on integers",
    ),
    "QOperator format": (
        "q = QuantizeLinear(x, s, z) [qmm] m = QLinearMatMul(q, s, z, q, s, z, s, z) y = DequantizeLinear(m, s, z)",
        "node 'qmm' (QLinearMatMul) computes on integers",
    ),
    "scale of a wrong length": ("[dq] d = DequantizeLinear(i, three) y = Add(x, d)", "'dq': its scale has shape (3,)"),
    "axis out of range": (
        "[dq] d = DequantizeLinear<axis=2>(i, row) y = Add(x, d)",
        "'dq': axis 2 is out of range",
    ),
    "zero point of another shape": (
        "[q] q = QuantizeLinear(x, row, z3) y = DequantizeLinear(q, row, z3)",
        "'q': scale has shape (4,) and zero point (3,): they must be equal",
    ),
    "int32 zero point": (
        "[dq] d = DequantizeLinear(i32, s, z32) y = Add(x, d)",
        "'dq': the zero point of int32 must be 0",
    ),
    "float8 zero point": (
        "[dq] d = DequantizeLinear(f8, s, zf8) y = Add(x, d)",
        "'dq': the zero point of float8e4m3fn must be 0",
    ),
    "another float8": (
        "[dq] d = DequantizeLinear(e5, s) y = Add(x, d)",
        "'dq': quantized dtype FLOAT8E5M2 is not supported",
    ),
    "float8 that does not saturate": (
        "[q] q = QuantizeLinear<saturate=0, output_dtype=17>(x, s) y = DequantizeLinear(q, s)",
        "'q': saturate=0 is not supported",
    ),
    "a subgraph": (
        f"{PAIR} [if] y = If(yes) <then_branch = a () => (float[4,4] u) {{ u = Neg(d) }}, "
        "else_branch = b () => (float[4,4] v) { v = Abs(d) }>",
        "node 'if' (If) has a subgraph, which is not supported",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case: str, tmp_path: Path) -> None:
    body, message = REFUSED[case]
    used = {
        name: array
        for name, array in CONSTANTS.items()
        if name in body.replace("(", " ").replace(",", " ").replace(")", " ").split()
    }
    model = read(text_model(tmp_path, f"g (float[4,4] x) => (float[4,4] y) {{ {body} }}", **used))
    with pytest.raises(InputError) as refusal:
        invert(model)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


INPUTS = {
    "dequantized with two scales": (
        "d = DequantizeLinear(x, s) [dq] e = DequantizeLinear(x, t) y = Add(d, e)",
        "input 'x': DequantizeLinear 'dq' has another scale or zero point",
    ),
    "computed on": (
        "d = DequantizeLinear(x, s) [c] e = Cast<to=1>(x) y = Add(d, e)",
        "input 'x': its integers are read by Cast 'c'",
    ),
}


@pytest.mark.parametrize("case", INPUTS)
def test_integer_input_refused(case: str, tmp_path: Path) -> None:
    body, message = INPUTS[case]
    scales = {"s": CONSTANTS["s"], "t": CONSTANTS["t"]}
    model = read(text_model(tmp_path, f"g (int8[4,4] x) => (float[4,4] y) {{ {body} }}", **scales))
    with pytest.raises(InputError, match=message):
        invert(model)
