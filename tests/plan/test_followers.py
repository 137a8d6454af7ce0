"""Operators that stay float unless both sides are quantized (``OpSupport.stays_float_between_float``)."""

from __future__ import annotations

import pytest

from dovetail.encoding import QParams
from dovetail.targets import open_target
from dovetail.targets.xnnpack.table import STATIC
from tests.planning import graph, noise, planned

WEIGHTS = "<float[4,4] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}, float[4] s = {1,1,1,1}>"


@pytest.mark.parametrize(
    ("nodes", "quantized"),
    [
        # A residual stream that layer norms consume: Add has no kernel with quantized inputs and a float output.
        (
            """h = MatMul(x, w) a = Add(h, x) n = LayerNormalization(a, s, s) i = MatMul(n, w) b = Add(a, i)
               y = LayerNormalization(b, s, s)""",
            {"h": True, "i": True, "a": False, "b": False},
        ),
        # The same additions between quantized layers.
        (
            "h = MatMul(x, w) a = Add(h, x) i = MatMul(a, w) b = Add(a, i) k = MatMul(b, w) y = Neg(k)",
            {"h": True, "i": True, "a": True, "b": True},
        ),
    ],
)
def test_additions_are_float_between_float_consumers(nodes: str, quantized: dict[str, bool]) -> None:
    model = graph(f"g (float[2,4] x) => (float[2,4] y) {WEIGHTS} {{ {nodes} }}")
    plan = planned(model, open_target("xnnpack"), STATIC, data=noise(model))
    assert {name: isinstance(plan.tensors[name].storage, QParams) for name in quantized} == quantized
