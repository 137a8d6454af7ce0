from __future__ import annotations

import pytest

from dovetail.model.edit import is_op
from dovetail.passes.clip_to_min_max import clip_to_min_max
from tests.equality import changed_by, model_from, ops


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("a, zero, high", ["Exp", "Min", "Neg", "Neg", "Relu"]),
        ("a, low, high", ["Exp", "Max", "Min", "Neg", "Neg"]),
        ("a, low", ["Exp", "Max", "Neg", "Neg"]),
        ("a, , high", ["Exp", "Min", "Neg", "Neg"]),
    ],
)
def test_a_clip_is_max_and_min_and_other_consumers_are_not_changed(inputs: str, expected: list[str]) -> None:
    text = f"""g (float[4,9] x) => (float[4,9] y, float[4,9] z)
        <float zero = {{0}}, float low = {{-0.3}}, float high = {{0.5}}>
        {{ a = Neg(x) c = Clip({inputs}) y = Neg(c) z = Exp(a) }}"""
    after, record = changed_by(clip_to_min_max, model_from(text))
    assert sorted(ops(after)) == expected
    assert [site.where for site in record.changed] == ["c"]


def test_only_the_clips_that_the_caller_names_are_changed() -> None:
    text = "g (float[4,9] x) => (float[4,9] y) <float low = {0}> { y = Clip(x, low) }"
    after, record = changed_by(
        lambda model: clip_to_min_max(model, applies=lambda node: not is_op(node, "Clip")), model_from(text)
    )
    assert ops(after) == ["Clip"]
    assert not record.changed
