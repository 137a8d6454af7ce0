"""Images to calibrate networks with random weights."""

from __future__ import annotations

import numpy as np

from dovetail.encoding import Array


def images(shape: tuple[int, ...], count: int = 4) -> dict[str, Array]:
    """Smooth random pictures, which calibrate better than noise."""
    rng = np.random.default_rng(0)
    coarse = rng.standard_normal((count, *shape[1:-2], shape[-2] // 8, shape[-1] // 8)).astype(np.float32)
    fine = coarse.repeat(8, axis=-2).repeat(8, axis=-1)
    return {"x": (fine + 0.1 * rng.standard_normal(fine.shape)).astype(np.float32)}
