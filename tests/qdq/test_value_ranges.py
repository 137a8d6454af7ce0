"""The range that operators leave to a value, against what ONNX Runtime computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.model.session import Mode
from dovetail.qdq.value_ranges import value_ranges
from dovetail.verify.run import SessionRun
from tests.equality import model_from

CONSTANTS = "<float minus = {-1}, float low = {2}, float high = {5}, float six = {6}, float zero = {0}>"


@pytest.mark.parametrize(
    ("body", "bounds"),
    [
        ("a = Clip(x, low, high) y = Sub(a, high)", (-3.0, 0.0)),
        ("a = Clip(x, , minus) b = Clip(a, zero, six) y = Sub(b, minus)", (1.0, 1.0)),
        ("a = Clip(x, low, high) y = Clip(a, m)", None),
        ("a = Clip(x, low, high) b = AveragePool<kernel_shape=[2,2]>(a) y = Sub(b, low)", (0.0, 3.0)),
        (
            "a = Clip(x, low, high) y = AveragePool<kernel_shape=[2,2], pads=[1,1,1,1], count_include_pad=1>(a)",
            (0.0, 5.0),
        ),
    ],
)
def test_values_are_in_the_range(body: str, bounds: tuple[float, float] | None, tmp_path: Path) -> None:
    model = model_from(f"g (float[1,1,4,4] x, float m) => (float[1,1,h,w] y) {CONSTANTS} {{ {body} }}")
    ranges = {str(value.name): tuple(ends) for value, ends in value_ranges(model.graph).items()}
    assert ranges.get("y") == bounds
    inputs = 20 * np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)
    (outputs,) = SessionRun(model, Mode.FLOAT, tmp_path)([{"x": inputs, "m": np.array(9, np.float32)}])
    low, high = bounds or (-np.inf, np.inf)
    assert low <= outputs["y"].min() <= outputs["y"].max() <= high
