from __future__ import annotations

import pytest

from dovetail.passes.global_max_pool_to_reduce_max import global_max_pool_to_reduce_max
from tests.equality import changed_by, model_from, ops


@pytest.mark.parametrize(("shape", "pooled"), [("2,3,5,4", "2,3,1,1"), ("2,3,5", "2,3,1")])
def test_a_global_max_pool_is_a_reduce_max(shape: str, pooled: str) -> None:
    text = f"""g (float[{shape}] x) => (float[{pooled}] y, float[{shape}] z)
        {{ a = Neg(x) p = GlobalMaxPool(a) y = Neg(p) z = Exp(a) }}"""
    after, record = changed_by(global_max_pool_to_reduce_max, model_from(text))
    assert sorted(ops(after)) == ["Exp", "Neg", "Neg", "ReduceMax"]
    assert [site.where for site in record.changed] == ["p"]


def test_other_pooling_is_not_changed() -> None:
    text = "g (float[2,3,5,4] x) => (float[2,3,1,1] y) { y = GlobalAveragePool(x) }"
    after, record = changed_by(global_max_pool_to_reduce_max, model_from(text))
    assert ops(after) == ["GlobalAveragePool"]
    assert not record.changed
