"""The operator GroupNormalization as exporters write it, with InstanceNormalization."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.passes.group_norm_to_instance_norm import group_norm_to_instance_norm
from tests.equality import changed_by, model_from, normal, ops

TEXT = """g (float[2,6,4] x) => (float[2,6,4] y, float[2,6,4] z)
{ a = Neg(x) y = GroupNormalization<num_groups=3, epsilon=0.01>(a, s, b) z = Neg(a) }"""
SPLIT = ["Reshape", "InstanceNormalization", "Reshape"]


@pytest.mark.parametrize(("opset", "size"), [(21, 6), (18, 3)])
def test_a_scale_per_channel_or_per_group_with_a_second_consumer_of_the_input(opset: int, size: int) -> None:
    model = model_from(TEXT, opset, s=normal(size), b=normal(size, seed=1))
    after, record = changed_by(group_norm_to_instance_norm, model)
    assert [op for op in ops(after) if op != "Neg"] == [*SPLIT, "Mul", "Add"]
    assert [site.where for site in record.changed] == ["y"]


def test_a_neutral_scale_and_bias_add_no_operator() -> None:
    model = model_from(TEXT, s=np.ones(6, np.float32), b=np.zeros(6, np.float32))
    after, _ = changed_by(group_norm_to_instance_norm, model)
    assert [op for op in ops(after) if op != "Neg"] == SPLIT


def test_a_scale_that_is_not_constant_is_declined() -> None:
    text = "g (float[2,6,4] x, float[6] s) => (float[2,6,4] y) { y = GroupNormalization<num_groups=3>(x, s, b) }"
    _, record = changed_by(group_norm_to_instance_norm, model_from(text, b=normal(6)))
    assert (record.changed, len(record.declined)) == ((), 1)
