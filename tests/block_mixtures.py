"""A model of three linear layers, the second with a bias, whose weights have different precisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dovetail.encoding import DType, Granularity
from dovetail.model.write import write
from dovetail.report.result import Result
from tests.equality import model_from, normal

BODY = """g (float[8,64] x) => (float[8,32] y)
{ [one] a = MatMul(x, w) b = Relu(a) [two] c = MatMul(b, v) d = Add(c, bias) e = Relu(d) [three] y = MatMul(e, u) }"""
INT8 = (DType.S8, Granularity.AXIS)
INT4 = (DType.S4, Granularity.AXIS)
BLOCK = (DType.S4, Granularity.BLOCK)
EXPANDED = (DType.S4, Granularity.EXPANDED_BLOCK)
# The precision of the model, that of its second layer, and the weights of the three layers.
MIXTURES = [
    ("w8a16", "w4a16-lpbq", [INT8, EXPANDED, INT8]),
    ("w8a16", "w4a16-bq", [INT8, BLOCK, INT8]),
    ("w4a16", "w4a16-lpbq", [INT4, EXPANDED, INT4]),
    ("w4a16-lpbq", "w8a16", [EXPANDED, INT8, EXPANDED]),
    ("w4a16-bq", "w8a16", [BLOCK, INT8, BLOCK]),
    ("w8a8", "w4a16-lpbq", [INT8, EXPANDED, INT8]),
]


def three_layers(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The model's file, and the calibration data."""
    weights = {
        "w": normal(64, 64),
        "v": normal(64, 64, seed=1),
        "u": normal(64, 32, seed=2),
        "bias": normal(64, seed=3),
    }
    path = write(model_from(BODY, **weights), folder / "model.onnx")[0]
    return path, {"x": np.random.default_rng(0).standard_normal((4, 8, 64)).astype(np.float32)}


def weights_of(result: Result) -> list[tuple[DType, Granularity]]:
    """The dtype and granularity of every weight, in the order of the layers."""
    rows = [row for row in result.plan if row.edge is not None and row.edge.index == 1 and "weight" in row.detail]
    return [(row.dtype, row.granularity) for row in rows]
