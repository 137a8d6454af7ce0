from __future__ import annotations

import pytest

from dovetail.passes.bypass_gather_of_concat import bypass_gather_of_concat
from tests.equality import changed_by, model_from, ops

CONSTANTS = "<int64 none = {0}, int64 second = {1}, int64 last = {-1}, int64[1] listed = {1}, int64[2] both = {0,1}>"
BRANCHES = "a = Neg(x) b = Relu(x)"


@pytest.mark.parametrize(
    ("body", "selected"),
    [
        ("s = Concat<axis=1>(a, b) y = Gather<axis=1>(s, last)", "Relu"),
        ("s = Concat<axis=1>(a, b) y = Gather<axis=-2>(s, none)", "Neg"),
        ("r = Concat<axis=1>(a, a) s = Concat<axis=1>(b, r) y = Gather<axis=1>(s, second)", "Neg"),
        ("s = Concat<axis=1>(a, b) g = Gather<axis=1>(s, listed) y = Gather<axis=1>(g, none)", "Relu"),
        ("y = Gather<axis=1>(b, last)", "Relu"),
    ],
)
def test_selected_input_is_used_directly(body: str, selected: str) -> None:
    text = f"g (float[2,1,3] x) => (float[2,3] y) {CONSTANTS} {{ {BRANCHES} {body} }}"
    after, record = changed_by(bypass_gather_of_concat, model_from(text))
    assert "Gather" not in ops(after)
    assert selected in ops(after)
    assert record.changed[-1].where == "y"


def test_second_consumer_keeps_the_concat() -> None:
    text = f"""g (float[2,1,3] x) => (float[2,3] y, float[2,2,3] z) {CONSTANTS}
        {{ {BRANCHES} s = Concat<axis=1>(a, b) y = Gather<axis=1>(s, last) z = Abs(s) }}"""
    after, _ = changed_by(bypass_gather_of_concat, model_from(text))
    assert sorted(ops(after)) == ["Abs", "Concat", "Neg", "Relu", "Reshape"]


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("w = Concat<axis=2>(a, b) y = Gather<axis=2>(w, second)", "2,1"),
        ("s = Concat<axis=1>(a, b) t = Abs(s) y = Gather<axis=1>(t, second)", "2,3"),
        ("s = Concat<axis=1>(a, b) y = Gather<axis=0>(s, second)", "2,3"),
    ],
)
def test_one_of_several_is_declined(body: str, shape: str) -> None:
    text = f"g (float[2,1,3] x) => (float[{shape}] y) {CONSTANTS} {{ {BRANCHES} {body} }}"
    after, record = changed_by(bypass_gather_of_concat, model_from(text))
    assert "Gather" in ops(after)
    assert [site.where for site in record.declined] == ["y"]


def test_several_indices_are_ignored() -> None:
    body = f"{BRANCHES} s = Concat<axis=1>(a, b) y = Gather<axis=1>(s, both)"
    text = f"g (float[2,1,3] x) => (float[2,2,3] y) {CONSTANTS} {{ {body} }}"
    after, record = changed_by(bypass_gather_of_concat, model_from(text))
    assert "Gather" in ops(after)
    assert not record.declined
