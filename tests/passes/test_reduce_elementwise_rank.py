from __future__ import annotations

import onnx_ir as ir
import pytest

from dovetail.model.edit import shape_of
from dovetail.passes.reduce_elementwise_rank import MAX_RANK, reduce_elementwise_rank
from tests.equality import changed_by, model_from, normal, ops

AXIS = "int64[1] begin = {0}, int64[1] middle = {2}, int64[1] end = {4}, int64[1] last = {-1}"
# The sampling points of deformable attention: offsets per level and point, relative to the size of a query's box.
POINTS = f"""g (float[BATCH,5,2,LEVELS,3,2] offsets, float[BATCH,5,1,LEVELS,1,4] boxes)
    => (float[BATCH,5,2,LEVELS,3,2] y) <float half = {{0.5}}, {AXIS}>
    {{
        center = Slice(boxes, begin, middle, last)
        size = Slice(boxes, middle, end, last)
        scaled = Mul(offsets, half)
        moved = Mul(scaled, size)
        points = Add(center, moved)
        y = Relu(points)
    }}"""


def _points(batch: int, levels: int) -> ir.Model:
    return model_from(POINTS.replace("BATCH", str(batch)).replace("LEVELS", str(levels)))


def _ranks(model: ir.Model) -> dict[str, int]:
    return {node.op_type: len(shape_of(node.outputs[0]) or ()) for node in model.graph if node.op_type != "Reshape"}


@pytest.mark.parametrize(("batch", "levels"), [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_sampling_points_are_computed_in_rank_5(batch: int, levels: int) -> None:
    after, record = changed_by(reduce_elementwise_rank, _points(batch, levels))
    assert ops(after) == ["Reshape", "Slice", "Slice", "Reshape", "Mul", "Mul", "Add", "Relu", "Reshape"]
    assert set(_ranks(after).values()) == {MAX_RANK}
    assert [site.where for site in record.changed] == ["center"]


def test_constants_are_reshaped_offline() -> None:
    text = "g (float[2,3,2,2,2,2] x) => (float[2,3,2,2,2,2] y) { a = Mul(x, c) b = Add(a, d) y = Sub(one, b) }"
    constants = {"c": normal(2, 3, 1, 1, 2, 2), "d": normal(2, 2), "one": normal(1)}
    after, _ = changed_by(reduce_elementwise_rank, model_from(text, **constants))
    assert ops(after) == ["Reshape", "Mul", "Add", "Sub", "Reshape"]


def test_conditions_keep_their_type() -> None:
    text = """g (float[1,3,2,2,2,2] x, float[1,3,2,1,2,2] z) => (float[1,3,2,2,2,2] y)
        { c = Less(x, z) m = Concat<axis=3>(z, z) y = Where(c, m, x) }"""
    after, _ = changed_by(reduce_elementwise_rank, model_from(text))
    assert _ranks(after) == {"Less": 5, "Concat": 5, "Where": 5}


def test_softmax_keeps_its_axis() -> None:
    text = "g (float[1,3,2,1,2,4] x) => (float[1,3,2,1,2,4] y) { a = Softmax<axis=4>(x) y = Neg(a) }"
    after, _ = changed_by(reduce_elementwise_rank, model_from(text))
    assert after.graph.node(1).attributes["axis"].value == 3


def test_second_consumer_still_gets_the_old_shape() -> None:
    text = """g (float[1,3,2,2,2,2] x) => (float[1,3,2,2,2,2] y, float[1,2,3,2,2,2] z, float[1,3,2,2,2,2] w)
        { a = Neg(x) y = Relu(a) z = Transpose<perm=[0,2,1,3,4,5]>(a) w = Transpose<perm=[0,1,2,3,5,4]>(x) }"""
    after, _ = changed_by(reduce_elementwise_rank, model_from(text))
    assert ops(after).count("Transpose") == 2
    assert _ranks(after)["Relu"] == 5


def test_axes_that_are_broadcast_differently_are_declined() -> None:
    text = "g (float[2,3,2,3,2,3] x, float[2,1,2,1,2,1] z) => (float[2,3,2,3,2,3] y) { y = Add(x, z) }"
    after, record = changed_by(reduce_elementwise_rank, model_from(text))
    assert ops(after) == ["Add"]
    assert "stays above 5" in record.declined[0].what


def test_layout_and_lower_ranks_are_not_changed() -> None:
    text = """g (float[1,2,3,2,2] x, float[1,2,2,2,2,2] z) => (float[1,2,3,2,2] y, float[2,1,2,2,2,2] t)
        { y = Neg(x) t = Transpose<perm=[1,0,2,3,4,5]>(z) }"""
    after, record = changed_by(reduce_elementwise_rank, model_from(text))
    assert ops(after) == ["Neg", "Transpose"]
    assert not record.changed
