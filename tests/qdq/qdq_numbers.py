"""The scales, zero points and weights of small QDQ test graphs, and the type of an inversion case."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

QPARAMS = {
    "s": np.float32(0.05),
    "z": np.uint8(120),
    "t": np.float32(0.11),
    "zt": np.uint8(7),
    "h": np.float32(0.001),
    "zh": np.uint16(33000),
}

# Body -> operators of the float graph, quantized tensors, edges.
Case = tuple[str, list[str], set[str], dict[str, str]]

WEIGHT = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
ROWS = np.linspace(0.01, 0.06, 6, dtype=np.float32)
COLUMNS = np.linspace(0.01, 0.04, 4, dtype=np.float32)
BLOCKS = np.linspace(0.01, 0.08, 12, dtype=np.float32).reshape(3, 4)


def grid(dtype: Any) -> Any:
    """Seeded integers over the whole range of a quantized dtype, shape [6, 4]."""
    info = ml_dtypes.iinfo(dtype)
    integers = np.random.default_rng(1).integers(info.min, info.max, (6, 4), dtype=np.int64)
    return integers.astype(np.int32).astype(dtype)
