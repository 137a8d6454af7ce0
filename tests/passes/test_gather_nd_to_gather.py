from __future__ import annotations

import numpy as np
import pytest

from dovetail.passes.gather_nd_to_gather import gather_nd_to_gather
from tests.equality import changed_by, model_from, ops

CONSTANTS = """<int64[2,1] rows = {2,0}, int64[2,2] cells = {1,2,-1,0}, int64[2,3] points = {1,2,0,2,0,1},
    int64[4,1] all = {3,2,1,0}>"""


@pytest.mark.parametrize(
    ("indices", "updates"), [("rows", "2,3,2"), ("cells", "2,2"), ("points", "2"), ("all", "4,3,2")]
)
def test_scatter_with_constant_indices_becomes_a_gather(indices: str, updates: str) -> None:
    text = f"""g (float[4,3,2] x, float[{updates}] u) => (float[4,3,2] y) {CONSTANTS}
        {{ y = ScatterND(x, {indices}, u) }}"""
    after, record = changed_by(gather_nd_to_gather, model_from(text))
    assert "ScatterND" not in ops(after)
    assert ops(after).count("Gather") == ops(after).count("Concat") == 1
    assert [site.where for site in record.changed] == ["y"]


@pytest.mark.parametrize(("indices", "shape"), [("rows", "2,3,2"), ("cells", "2,2"), ("points", "2")])
def test_gather_nd_with_constant_indices_becomes_a_gather(indices: str, shape: str) -> None:
    text = f"g (float[4,3,2] x) => (float[{shape}] y) {CONSTANTS} {{ y = GatherND(x, {indices}) }}"
    after, _ = changed_by(gather_nd_to_gather, model_from(text))
    assert ops(after)[-1] == "Gather"


def test_gather_nd_of_computed_rows_becomes_a_gather() -> None:
    text = "g (float[4,3,2] x, int64[5,2,1] i) => (float[5,2,3,2] y) { y = GatherND(x, i) }"
    after, _ = changed_by(gather_nd_to_gather, model_from(text))
    assert ops(after) == ["Reshape", "Gather"]


def test_constant_updates_are_reshaped_offline() -> None:
    text = "g (float[4,3,2] x) => (float[4,3,2] y) <int64[2,1] rows = {2,0}> { y = ScatterND(x, rows, zeros) }"
    after, _ = changed_by(gather_nd_to_gather, model_from(text, zeros=np.zeros((2, 3, 2), np.float32)))
    assert ops(after) == ["Reshape", "Concat", "Gather", "Reshape"]


def test_other_consumers_of_data_and_updates_are_not_changed() -> None:
    text = f"""g (float[4,3,2] x, float[2,3,2] u) => (float[4,3,2] y, float[4,3,2] z, float[2,3,2] w) {CONSTANTS}
        {{ a = Neg(x) b = Neg(u) y = ScatterND(a, rows, b) z = Relu(a) w = Relu(b) }}"""
    after, record = changed_by(gather_nd_to_gather, model_from(text))
    assert len(record.changed) == 1
    assert ops(after).count("Relu") == 2


@pytest.mark.parametrize(
    ("body", "shape", "reason"),
    [
        ("y = ScatterND(x, i, u)", "4,3,2", "depend on the inputs"),
        ('y = ScatterND<reduction="add">(x, rows, u)', "4,3,2", "it has a reduction"),
        ("y = GatherND(x, j)", "2,2", "depend on the inputs"),
        ("y = GatherND<batch_dims=1>(x, k)", "4,2", "it has batch dimensions"),
    ],
)
def test_unsupported_nodes_are_declined(body: str, shape: str, reason: str) -> None:
    text = f"""g (float[4,3,2] x, float[2,3,2] u, int64[2,1] i, int64[2,2] j, int64[4,1] k) => (float[{shape}] y)
        {CONSTANTS} {{ {body} }}"""
    after, record = changed_by(gather_nd_to_gather, model_from(text))
    assert ops(after)[0] in ("ScatterND", "GatherND")
    assert reason in record.declined[0].what
