"""Inverting quantized constants: every dtype and granularity, and the graphs around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dovetail.edge import Edge
from dovetail.encoding import DType, Granularity
from dovetail.model.origin import origin_of
from tests.qdq.qdq_numbers import BLOCKS, COLUMNS, QPARAMS, ROWS, WEIGHT, Case, grid
from tests.qdq.round_trip import round_trip, text_model

FLOAT8 = np.random.default_rng(2).normal(size=(6, 4)).astype(ml_dtypes.float8_e4m3fn)
# Integers, scale, zero point or None, attributes.
Constant = tuple[Any, Any, Any, str]
CONSTANTS: dict[str, Constant] = {
    "int8 per tensor": (grid(np.int8), np.float32(0.03), np.int8(4), ""),
    "int8 per tensor, scale of rank 1": (grid(np.int8), np.float32([0.03]), np.int8([4]), ""),
    "int8 per column": (grid(np.int8), COLUMNS, np.zeros(4, np.int8), "<axis=1>"),
    "int8 per row": (grid(np.int8), ROWS, np.arange(6, dtype=np.int8), "<axis=0>"),
    "int8 on a negative axis": (grid(np.int8), ROWS, np.zeros(6, np.int8), "<axis=-2>"),
    "int8 on the default axis": (grid(np.int8), COLUMNS, None, ""),
    "int8 in blocks": (grid(np.int8), BLOCKS, np.zeros((3, 4), np.int8), "<axis=0, block_size=2>"),
    "uint8": (grid(np.uint8), np.float32(0.03), np.uint8(131), ""),
    "int16": (grid(np.int16), np.float32(0.0003), np.int16(0), ""),
    "uint16": (grid(np.uint16), np.float32(0.0003), np.uint16(32000), ""),
    "int32": (grid(np.int32), COLUMNS * np.float32(1e-9), None, "<axis=1>"),
    "int32 with a zero point": (grid(np.int32), np.float32(1e-9), np.int32(0), ""),
    "int4": (grid(ml_dtypes.int4), np.float32(0.3), np.int8(-2).astype(ml_dtypes.int4), ""),
    "uint4 in blocks": (
        grid(ml_dtypes.uint4),
        BLOCKS,
        np.full((3, 4), 9, np.uint8).astype(ml_dtypes.uint4),
        "<axis=-2, block_size=2>",
    ),
    "int4 per column": (grid(ml_dtypes.int4), COLUMNS, np.zeros(4, np.int8).astype(ml_dtypes.int4), "<axis=1>"),
    "float8": (FLOAT8, np.float32(0.03), np.float32(0).astype(ml_dtypes.float8_e4m3fn), ""),
    "float8 per column": (FLOAT8, COLUMNS, None, "<axis=1>"),
}


@pytest.mark.parametrize("case", CONSTANTS)
def test_integer_constants(case: str, tmp_path: Path) -> None:
    integers, scale, zero_point, attributes = CONSTANTS[case]
    operands, constants = "W__q, ws", {"W__q": integers, "ws": scale}
    if zero_point is not None:
        operands, constants["wz"] = "W__q, ws, wz", zero_point
    text = f"""g (float[2,6] x) => (float[2,4] y)
        {{ W__dq = DequantizeLinear{attributes}({operands}) [o] y = MatMul(x, W__dq) }}"""
    trip = round_trip(text_model(tmp_path, text, **constants))
    assert trip.ops() == ["MatMul"]
    edge = Edge("o", 1)
    np.testing.assert_array_equal(trip.plan.stored[edge], integers)
    assert trip.edges() == {"o:1": DType(str(integers.dtype).replace("_", "")).value}
    assert trip.model.graph.initializers.keys() == {"W"}
    assert origin_of(trip.model.graph.initializers["W"]).name == "W__q"
    assert trip.emitted.graph.initializers.keys() >= {"W__q"}


def test_per_block_and_per_axis_scales_are_distinguished(tmp_path: Path) -> None:
    text = """g (float[2,6] x) => (float[2,4] y) {
        a = DequantizeLinear<axis=-2, block_size=2>(i, b) c = DequantizeLinear<axis=-1>(i, k)
        w = Add(a, c) y = MatMul(x, w) }"""
    trip = round_trip(text_model(tmp_path, text, i=grid(np.int8), b=BLOCKS, k=COLUMNS))
    storages = {str(edge): choice.storage for edge, choice in trip.plan.edges.items()}
    granularities = {name: (s.encoding.granularity, s.axis, s.encoding.block_size) for name, s in storages.items()}
    assert granularities == {"Add/w:0": (Granularity.BLOCK, 0, 2), "Add/w:1": (Granularity.AXIS, 1, 0)}


# Body -> operators of the float graph, quantized tensors, edges. The constants: W in float, I in int8 with scale r.
AROUND_CONSTANTS: dict[str, Case] = {
    "read by several nodes": (
        "d = DequantizeLinear<axis=1>(I, r) [a] u = Mul(x, d) [o] y = Add(u, d)",
        ["Mul", "Add"],
        set(),
        {"a:1": "int8", "o:1": "int8"},
    ),
    "a DQ for each consumer": (
        "d = DequantizeLinear(I, r) e = DequantizeLinear(I, r) [a] u = Mul(x, d) [o] y = Add(u, e)",
        ["Mul", "Add"],
        set(),
        {"a:1": "int8", "o:1": "int8"},
    ),
    "dequantized with two scales": (
        "d = DequantizeLinear(I, r) e = DequantizeLinear(I, p) [a] u = Mul(x, d) [o] y = Add(u, e)",
        ["Mul", "Add"],
        set(),
        {"a:1": "int8", "o:1": "int8"},
    ),
    "a float constant, quantized at run time": (
        "q = QuantizeLinear(W, r) d = DequantizeLinear(q, r) [a] u = Mul(x, W) [o] y = Add(u, d)",
        ["Mul", "Add"],
        set(),
        {"o:1": "uint8"},
    ),
    "an output": (
        "y = DequantizeLinear(I, r) [o] w = Add(x, y)",
        ["Identity", "Add"],
        set(),
        {"I.1/Identity:0": "int8", "o:1": "int8"},
    ),
    "a float constant as an output": (
        "q = QuantizeLinear(W, r) y = DequantizeLinear(q, r) [o] w = Add(x, y)",
        ["Identity", "Add"],
        {"y"},
        {},
    ),
    "quantized again": (
        "d = DequantizeLinear(I, r) q = QuantizeLinear(d, s, z) e = DequantizeLinear(q, s, z) [o] y = Add(x, e)",
        ["Identity", "Add"],
        {"I.1/Identity"},
        {"I.1/Identity:0": "int8"},
    ),
    "transposed as integers": (
        "m = Transpose(T) d = DequantizeLinear<axis=1>(m, r) [o] y = Add(x, d)",
        ["Add"],
        set(),
        {"o:1": "int8"},
    ),
}


@pytest.mark.parametrize("case", AROUND_CONSTANTS)
def test_around_constants(case: str, tmp_path: Path) -> None:
    body, ops, tensors, edges = AROUND_CONSTANTS[case]
    outputs = ", ".join(f"float[6,4] {name}" for name in ("y", "w") if f" {name} = " in f" {body}")
    constants = {**QPARAMS, "W": WEIGHT, "I": grid(np.int8), "r": COLUMNS, "p": np.float32(0.02)}
    constants["T"] = np.ascontiguousarray(grid(np.int8).T)
    if "axis" not in body:
        constants["r"] = np.float32(0.03)
    path = text_model(tmp_path, f"g (float[6,4] x) => ({outputs}) {{ {body} }}", **constants)
    trip = round_trip(path)
    assert trip.ops() == ops
    assert trip.edges() == edges
    assert trip.quantized_tensors() == tensors
    assert "W" not in trip.model.graph.initializers or "W" in body


def test_transposed_4_bit_constants(tmp_path: Path) -> None:
    text = "g (float[6,4] x) => (float[6,4] y) { m = Transpose(T) d = DequantizeLinear(m, s) y = Add(x, d) }"
    integers = np.ascontiguousarray(grid(ml_dtypes.int4).T)
    trip = round_trip(text_model(tmp_path, text, T=integers, s=QPARAMS["s"]))
    assert set(trip.edges().values()) == {"int4"}
