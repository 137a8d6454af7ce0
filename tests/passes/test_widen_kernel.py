from __future__ import annotations

import onnx_ir as ir
import pytest

from dovetail.model.edit import attribute, is_op
from dovetail.passes.widen_kernel import widen_kernel
from tests.equality import changed_by, model_from, normal, ops


def convolution(attributes: str, *weight: int, rest: str = "") -> ir.Model:
    text = f"g (float[1,6,9,10] x) => (float[a,b,c,d] y{', float[6,1,1,1] z' if rest else ''})"
    return model_from(f"{text} {{ y = Conv<{attributes}>(x, w, b) {rest} }}", w=normal(*weight), b=normal(weight[0]))


@pytest.mark.parametrize(
    ("attributes", "weight"),
    [
        ("group=6, pads=[1,0,1,2]", (6, 1, 1, 1)),
        ("group=6, pads=[2,0,0,0], strides=[1,2]", (6, 1, 1, 1)),
        ("group=6, kernel_shape=[1,1]", (6, 1, 1, 1)),
        ("group=2, pads=[2,1,2,0], dilations=[2,3]", (4, 3, 3, 1)),
    ],
)
def test_a_column_of_zeros_does_not_change_the_outputs(attributes: str, weight: tuple[int, ...]) -> None:
    after, record = changed_by(widen_kernel, convolution(attributes, *weight))
    assert len(record.changed) == 1
    (conv,) = [node for node in after.graph if is_op(node, "Conv")]
    assert list(attribute(conv, "kernel_shape", ())) == [weight[2], 2]


def test_another_reader_of_the_weight_reads_what_it_did() -> None:
    after, record = changed_by(widen_kernel, convolution("group=6, pads=[1,0,0,0]", 6, 1, 1, 1, rest="z = Neg(w)"))
    assert len(record.changed) == 1
    assert ops(after) == ["Conv", "Neg"]


def test_a_wider_kernel_computed_pads_and_one_that_is_not_meant_stay() -> None:
    for model in (
        convolution("group=6, pads=[1,0,0,1]", 6, 1, 1, 2),
        convolution('group=6, auto_pad="SAME_UPPER"', 6, 1, 1, 1),
    ):
        _, record = changed_by(widen_kernel, model)
        assert not record.changed
        assert len(record.declined) == 1
    _, record = changed_by(lambda model: widen_kernel(model, lambda node: False), convolution("group=6", 6, 1, 1, 1))
    assert not record.changed
    assert not record.declined
