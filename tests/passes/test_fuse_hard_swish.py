"""x * Clip(x + 3, 0, 6) / 6 as HardSwish."""

from __future__ import annotations

import pytest

from dovetail.passes.fuse_hard_swish import fuse_hard_swish
from tests.equality import changed_by, model_from, ops

CONSTANTS = """<float three = {3.0}, float zero = {0.0}, float six = {6.0}, float sixth = {0.16666667},
 float two = {2.0}>"""
GATE = "a = Add(x1, three) g = Clip(a, zero, six)"


def text(nodes: str) -> str:
    return f"g (float[5,4] x) => (float[5,4] y, float[5,4] z) {CONSTANTS} {{ x1 = Mul(x, six) z = Relu(x1) {nodes} }}"


@pytest.mark.parametrize(
    "nodes",
    [
        f"{GATE} m = Mul(x1, g) y = Div(m, six)",
        f"{GATE} m = Mul(g, x1) y = Mul(sixth, m)",
        f"{GATE} h = Div(g, six) y = Mul(x1, h)",
        "a = Add(three, x1) g = Clip(a, zero, six) h = Mul(g, sixth) y = Mul(h, x1)",
    ],
)
def test_every_order_with_a_second_consumer_of_the_input(nodes: str) -> None:
    after, record = changed_by(fuse_hard_swish, model_from(text(nodes)))
    assert sorted(ops(after)) == ["HardSwish", "Mul", "Relu"]
    assert [site.where for site in record.changed] == ["y"]


def test_a_clip_with_a_second_consumer_is_kept_for_it() -> None:
    nodes = f"{GATE} m = Mul(x1, g) n = Div(m, six) y = Add(n, g)"
    after, _ = changed_by(fuse_hard_swish, model_from(text(nodes)))
    assert {"HardSwish", "Clip"} <= set(ops(after))


@pytest.mark.parametrize(
    "nodes",
    [
        f"{GATE} m = Mul(z, g) y = Div(m, six)",  # the gate of another tensor
        f"{GATE} m = Mul(x1, g) y = Div(m, three)",
        f"{GATE} y = Mul(x1, g)",
        "a = Add(x1, two) g = Clip(a, zero, six) m = Mul(x1, g) y = Div(m, six)",
        "a = Add(x1, three) g = Clip(a, zero, three) m = Mul(x1, g) y = Div(m, six)",
        "a = Add(x1, three) g = Clip(a, zero) m = Mul(x1, g) y = Div(m, six)",
        f"{GATE} m = Mul(x1, g) y = Div(six, m)",
    ],
)
def test_other_products_are_not_changed(nodes: str) -> None:
    model = model_from(text(nodes))
    before = ops(model)
    assert not fuse_hard_swish(model).changed
    assert ops(model) == before
