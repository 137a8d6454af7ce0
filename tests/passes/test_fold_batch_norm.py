from __future__ import annotations

import numpy as np
import pytest

from dovetail.passes.fold_batch_norm import fold_batch_norm
from tests.equality import Array, changed_by, model_from, normal, ops

NORM = "y = BatchNormalization<epsilon=0.001>(c, scale, shift, mean, var)"


def _statistics(channels: int) -> dict[str, Array]:
    return {
        "scale": normal(channels, seed=1),
        "shift": normal(channels, seed=2),
        "mean": normal(channels, seed=3),
        "var": np.abs(normal(channels, seed=4)) + np.float32(0.1),
    }


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("bias", ["", ", b"])
def test_folds_into_a_convolution(group: int, bias: str) -> None:
    text = f"g (float[1,4,5,5] x) => (float[1,6,3,3] y) {{ c = Conv<group={group}>(x, w{bias}) {NORM} }}"
    model = model_from(text, w=normal(6, 4 // group, 3, 3), b=normal(6, seed=9), **_statistics(6))
    after, record = changed_by(fold_batch_norm, model)
    assert ops(after) == ["Conv"]
    assert record.changed[0].what == "BatchNormalization folded into the Conv"


@pytest.mark.parametrize("group", [1, 2])
def test_folds_into_a_transposed_convolution(group: int) -> None:
    text = f"""g (float[1,4,5,5] x) => (float[1,6,10,10] y)
        {{ c = ConvTranspose<group={group}, strides=[2,2]>(x, w) {NORM} }}"""
    after, _ = changed_by(fold_batch_norm, model_from(text, w=normal(4, 6 // group, 2, 2), **_statistics(6)))
    assert ops(after) == ["ConvTranspose"]


@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), (1,), ()])
def test_folds_factors_and_offsets_per_channel(shape: tuple[int, ...]) -> None:
    text = """g (float[1,4,5,5] x) => (float[1,6,3,3] y)
        { c = Conv(x, w) d = Mul(c, k) e = Add(d, k) f = Sub(e, k) y = Div(f, k) }"""
    after, record = changed_by(fold_batch_norm, model_from(text, w=normal(6, 4, 3, 3), k=np.exp(normal(*shape))))
    assert ops(after) == ["Conv"]
    assert len(record.changed) == 4


def test_keeps_a_weight_that_only_gets_a_bias() -> None:
    text = "g (float[1,4,5,5] x) => (float[1,6,3,3] y) { c = Conv(x, w) y = Add(c, k) }"
    after, _ = changed_by(fold_batch_norm, model_from(text, w=normal(6, 4, 3, 3), k=normal(6, 1, 1)))
    assert after.graph.node(0).inputs[1].name == "w"  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 3), (2, 6, 3, 3)])
def test_without_a_convolution_it_is_mul_and_add(shape: tuple[int, ...]) -> None:
    dims = ",".join(map(str, shape))
    after, record = changed_by(
        fold_batch_norm, model_from(f"g (float[{dims}] c) => (float[{dims}] y) {{ {NORM} }}", **_statistics(6))
    )
    assert ops(after) == ["Mul", "Add"]
    assert record.changed[0].what == "BatchNormalization rewritten as Mul and Add: it does not follow a convolution"


def test_convolution_with_a_second_consumer_keeps_its_weight() -> None:
    text = f"g (float[1,4,5,5] x) => (float[1,6,3,3] y, float[1,6,3,3] z) {{ c = Conv(x, w) {NORM} z = Relu(c) }}"
    after, record = changed_by(fold_batch_norm, model_from(text, w=normal(6, 4, 3, 3), **_statistics(6)))
    assert sorted(ops(after)) == ["Add", "Conv", "Mul", "Relu"]
    assert record.changed[0].what.endswith("the output of the convolution has other consumers")


def test_shared_weight_is_not_changed_for_the_other_convolution() -> None:
    text = f"""g (float[1,4,5,5] x) => (float[1,6,3,3] y, float[1,6,3,3] z)
        {{ c = Conv(x, w) {NORM} z = Conv(x, w) }}"""
    after, _ = changed_by(fold_batch_norm, model_from(text, w=normal(6, 4, 3, 3), **_statistics(6)))
    assert ops(after) == ["Conv", "Conv"]


def test_constant_along_the_width_is_not_folded() -> None:
    text = "g (float[1,4,5,5] x) => (float[1,6,3,3] y) { c = Conv(x, w) y = Mul(c, k) }"
    after, record = changed_by(fold_batch_norm, model_from(text, w=normal(6, 4, 3, 3), k=normal(3)))
    assert ops(after) == ["Conv", "Mul"]
    assert not record.changed


def test_statistics_that_are_inputs_are_declined() -> None:
    text = f"g (float[1,6,3,3] c, float[6] mean) => (float[1,6,3,3] y) {{ {NORM} }}"
    statistics = _statistics(6)
    del statistics["mean"]
    _, record = changed_by(fold_batch_norm, model_from(text, **statistics))
    assert record.declined[0].where == "y"
