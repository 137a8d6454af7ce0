"""SiLU is found by its two branches."""

from __future__ import annotations

import pytest

from dovetail.model.edit import is_op
from dovetail.model.silu import gated_input
from tests.equality import model_from


@pytest.mark.parametrize(
    ("nodes", "index"),
    [
        ("s = Sigmoid(x) y = Mul(x, s)", 0),
        ("s = Sigmoid(x) y = Mul(s, x)", 1),
        ("s = Sigmoid(z) y = Mul(x, s)", None),
        ("s = Tanh(x) y = Mul(x, s)", None),
    ],
)
def test_only_a_mul_with_the_sigmoid_of_its_other_input_is_a_silu(nodes: str, index: int | None) -> None:
    text = f"g (float[1,8,10,12] x, float[1,8,10,12] z) => (float[1,8,10,12] y) {{ {nodes} }}"
    (mul,) = [node for node in model_from(text).graph if is_op(node, "Mul")]
    assert gated_input(mul) == index
