"""Scale and zero point of a graph input that has the pixels of an image."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.encoding import QParams
from dovetail.numerics.affine import fake_quantize
from dovetail.op_support import W8A8, W8A16, Precision
from dovetail.targets import open_target
from tests.planning import graph, planned

IMAGE = "g (float[1,1,16,16] x) => (float[1,1,16,16] y) { n = Neg(x) y = Neg(n) }"
PIXELS = (np.arange(256, dtype=np.float32) / 255).reshape(1, 1, 1, 16, 16)


def stored(name: str, data: np.ndarray, precision: Precision = W8A8) -> QParams:
    plan = planned(graph(IMAGE), open_target("qnn-htp:sm8550"), precision, data={"x": data.astype(np.float32)})
    params = plan.tensors[name].storage
    assert isinstance(params, QParams)
    return params


@pytest.mark.parametrize("end", [1.0, 2.5])
def test_zero_and_both_ends_of_centered_pixels_are_on_the_grid(end: float) -> None:
    params = stored("x", end * (2 * PIXELS - 1))
    assert (float(params.scale), int(params.zero_point)) == (pytest.approx(end / 127), 127)
    ends = np.array([-end, 0, end], np.float32)
    np.testing.assert_allclose(fake_quantize(ends, params), ends, rtol=1e-6)


def test_pixels_are_not_half_way_between_two_steps() -> None:
    pixels = 2 * PIXELS - 1
    params = stored("x", pixels)
    steps = pixels.astype(np.float64) / float(params.scale)
    assert np.sqrt(np.mean((steps - np.rint(steps)) ** 2)) < 0.3  # half a step for every pixel, before


@pytest.mark.parametrize(
    ("name", "data", "precision", "scale", "zero_point"),
    [
        ("x", PIXELS, W8A8, 1 / 255, 0),
        ("x", 3 * PIXELS - 1, W8A8, 3 / 255, 85),
        ("x", 2 * PIXELS - 1, W8A16, 2 / 65535, 32768),
        ("n", 2 * PIXELS - 1, W8A8, 2 / 255, 128),  # computed, so its values are not those of pixels
    ],
)
def test_other_ranges_are_covered_with_all_steps(
    name: str, data: np.ndarray, precision: Precision, scale: float, zero_point: int
) -> None:
    params = stored(name, data, precision)
    assert float(params.scale) == pytest.approx(scale)
    assert abs(int(params.zero_point) - zero_point) <= 1
