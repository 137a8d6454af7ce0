"""ConvTransposes without output padding, and without groups."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir
import pytest

from dovetail.model.edit import attribute
from dovetail.passes.fold_output_padding import fold_output_padding
from dovetail.passes.ungroup_conv_transpose import ungroup_conv_transpose
from tests.equality import changed_by, model_from, normal, ops


def transposed(attributes: str, groups: int = 4, outputs: int = 1, kernel: int = 3) -> ir.Model:
    """A ConvTranspose whose input and weight have a second consumer."""
    text = f"""g (float[2,4,5,6] x) => (float[a,b,c,d] y, float[2,4,5,6] z, float[4,{outputs},{kernel},{kernel}] v)
        {{ a = Neg(x) y = ConvTranspose<group={groups}, {attributes}>(a, w, bias) z = Abs(a) v = Abs(w) }}"""
    return model_from(text, w=normal(4, outputs, kernel, kernel), bias=normal(groups * outputs))


@pytest.mark.parametrize(
    ("attributes", "pads"),
    [
        ("strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]", [1, 1, 0, 0]),
        ("strides=[3,2], pads=[0,1,0,2], output_padding=[2,1]", [0, 1, 0, 1]),  # the kernel gets two rows of zeros
        ("strides=[3,3], dilations=[2,2], output_padding=[1,2]", [0, 0, 1, 0]),
        ("strides=[2,2], kernel_shape=[3,3], output_padding=[1,0]", [0, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize(("groups", "outputs"), [(4, 1), (1, 3)])
def test_output_padding_is_smaller_pads_or_a_larger_kernel(
    attributes: str, pads: list[int], groups: int, outputs: int
) -> None:
    after, record = changed_by(fold_output_padding, transposed(attributes, groups, outputs))
    (node,) = [node for node in after.graph if node.op_type == "ConvTranspose"]
    assert list(attribute(node, "pads", ())) == pads
    assert not attribute(node, "output_padding", ())
    assert [site.where for site in record.changed] == ["y"]


def test_without_output_padding_or_with_a_computed_one_nothing_is_changed() -> None:
    for attributes in ("strides=[2,2]", "strides=[2,2], output_shape=[10,12], output_padding=[1,1]"):
        model = transposed(attributes)
        after, record = changed_by(fold_output_padding, model)
        assert (ops(after), record.changed) == (ops(model), ())
    model = transposed("strides=[2,2], output_padding=[1,1]")
    assert not changed_by(partial(fold_output_padding, applies=lambda node: False), model)[1].changed


@pytest.mark.parametrize(("groups", "outputs"), [(2, 1), (2, 3), (4, 2)])
def test_groups_are_zeros_in_the_weight(groups: int, outputs: int) -> None:
    after, record = changed_by(ungroup_conv_transpose, transposed("strides=[2,2], pads=[1,0,1,0]", groups, outputs))
    (node,) = [node for node in after.graph if node.op_type == "ConvTranspose"]
    assert attribute(node, "group", 1) == 1
    assert [site.where for site in record.changed] == ["y"]


@pytest.mark.parametrize(("groups", "outputs"), [(4, 1), (1, 3)])
def test_depthwise_and_ungrouped_ones_are_not_changed(groups: int, outputs: int) -> None:
    model = transposed("strides=[2,2]", groups, outputs)
    assert not changed_by(ungroup_conv_transpose, model)[1].changed
