"""The squared error of quantizing groups of values that have one scale each."""

from __future__ import annotations

import numpy as np

from dovetail.encoding import Array, Encoding, QParams
from dovetail.numerics.affine import fake_quantize

_CHUNK = 1 << 16  # elements: small enough for the cache, large enough to amortize NumPy's call overhead


def group_error(groups: Array, scale: Array, zero_point: Array, per_row: Encoding) -> Array:
    """Matrix with one group per row, a scale and zero point per row, an encoding per axis -> summed squared errors.

    They are summed in float64 over float32 chunks.
    """
    steps = np.zeros(len(groups))
    columns = min(groups.shape[1], _CHUNK)
    rows = max(1, _CHUNK // columns)
    for top in range(0, len(groups), rows):
        chunk = slice(top, top + rows)
        qparams = QParams(per_row, scale[chunk], zero_point[chunk], axis=0)
        for start in range(0, groups.shape[1], columns):
            real = groups[chunk, start : start + columns]
            error = fake_quantize(real, qparams)
            error -= real
            error /= scale[chunk, None]  # in steps: the square of a large weight would overflow
            steps[chunk] += np.einsum("ij,ij->i", error, error)
    return steps * scale.astype(np.float64) ** 2
