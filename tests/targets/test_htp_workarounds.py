"""When the workarounds for HTP apply; that they are needed and help is tested with the compiler (tests/backends)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.catalog import find_rule
from dovetail.encoding import DType
from dovetail.errors import InputError
from dovetail.finding import Severity
from dovetail.model.edit import is_op
from dovetail.rule_docs import case_texts
from dovetail.targets import open_target
from dovetail.targets.htp.workarounds import (
    WORKAROUNDS,
    clip,
    constant_pad,
    conv_transpose_add,
    group_norm,
    long_layer_norm,
    merged_pad,
    needed,
    padded_channels,
    pooling,
    resize,
    silu,
    softmax,
)
from dovetail.targets.htp.workarounds.workaround import Workaround
from tests.equality import model_from, normal
from tests.rules.cases import findings_in


def mul_of(shape: str, producer: str = "Conv(x, w)", channels: int = 8) -> ir.Node:
    weight = normal(channels, channels, 1, 1) if producer.startswith("Conv") else normal(channels, channels)
    text = f"g (float[{shape}] x) => (float[{shape}] y) {{ c = {producer} s = Sigmoid(c) y = Mul(s, c) }}"
    return next(node for node in model_from(text, w=weight).graph if is_op(node, "Mul"))


@pytest.mark.parametrize(
    ("shape", "channels", "expected"),
    [
        ("1,8,8,8", 8, False),
        ("1,8,9,40", 8, True),
        ("4,64,12,12", 64, True),
        ("1,64,13,8", 64, False),
        ("1,32,13,8", 32, True),
        ("1,8,13,9", 8, False),
        ("1,8,100,3", 8, True),
    ],
)
def test_the_size_decides_whether_a_silu_is_requantized(shape: str, channels: int, expected: bool) -> None:
    assert silu.is_miscompiled(mul_of(shape, channels=channels)) is expected


def test_without_an_operator_for_images_the_channels_are_last() -> None:
    assert silu.is_miscompiled(mul_of("1,10,20,8", "MatMul(x, w)"))
    assert not silu.is_miscompiled(mul_of("1,8,10,8", "MatMul(x, w)"))


def test_only_the_direct_branch_is_requantized_and_only_in_16_bits() -> None:
    rescaled = open_target("qnn-htp:sm8550").table.ops["Mul"].rescaled
    assert rescaled is not None
    mul = mul_of("1,8,10,12")
    assert "Q541" in rescaled(mul, 1, DType.U16)
    assert rescaled(mul, 0, DType.U16) == ""
    assert rescaled(mul, 1, DType.U8) == ""


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("a = Add(x, x) r = Clip(a, low, high) y = Concat<axis=1>(r, x)", True),
        ("a = Add(x, x) r = Clip(a, low, high) t = Transpose<perm=[0,1]>(r) y = Concat<axis=1>(x, t)", True),
        ("a = Add(x, x) r = Clip(a, low, high) t = Resize(r, , one) y = Concat<axis=1>(t, x)", True),
        ("a = Neg(x) r = Clip(a, low, high) y = Concat<axis=1>(r, x)", False),
        ("a = Add(x, x) r = Clip(a, low, high) n = Neg(r) y = Concat<axis=1>(n, x)", False),
    ],
)
def test_a_clip_that_is_fused_and_concatenated_is_found(nodes: str, expected: bool) -> None:
    text = f"""g (float[2,4] x) => (float[2,8] y) <float low = {{0}}, float high = {{6}}, float[2] one = {{1, 1}}>
        {{ {nodes} }}"""
    assert any(clip.may_be_miscompiled(node) for node in model_from(text).graph) is expected


@pytest.mark.parametrize(
    ("pads", "expected"), [("0,0,1,1,0,0,1,1", False), ("0,0,0,0,0,0,1,1", True), ("0,0,4,0,0,0,0,0", True)]
)
def test_an_asymmetric_pad_is_found(pads: str, expected: bool) -> None:
    text = f"g (float[1,2,4,4] x) => (float[a,b,c,d] y) <int64[8] pads = {{{pads}}}> {{ y = Pad(x, pads) }}"
    (node,) = model_from(text).graph
    assert constant_pad.is_miscompiled(node) is expected


@pytest.mark.parametrize(
    ("value", "consumer", "expected"),
    [
        (0, "Conv<pads=[1,1,1,1]>(p, w)", False),
        (0.5, "Conv<pads=[1,1,1,1]>(p, w)", True),
        (0, "AveragePool<kernel_shape=[2,2]>(p)", True),
        (0, "ConvTranspose(p, w)", True),
        (0, "GlobalAveragePool(p)", True),
        (0, "ReduceMean(p, hw)", True),
        (0, "ReduceMean<keepdims=0>(p, hw)", True),
        (0, "ReduceMean(p, ch)", False),
        (0, "ReduceMean(p)", False),
        (0, "MaxPool<kernel_shape=[3,3]>(p)", False),
        (0, "MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(p)", True),
    ],
)
def test_a_pad_that_is_merged_wrongly_is_found_by_its_value_and_its_consumer(
    value: float, consumer: str, expected: bool
) -> None:
    constants = (
        f"int64[8] pads = {{0,0,1,1,0,0,1,1}}, float v = {{{value}}}, int64[2] hw = {{-1,-2}}, int64[1] ch = {{1}}"
    )
    text = f"""g (float[1,2,9,9] x) => (float[a,b,c,d] y) <{constants}>
        {{ p = Pad(x, pads, v) y = {consumer} }}"""
    pad, *_ = model_from(text, w=normal(2, 2, 3, 3)).graph
    assert merged_pad.is_miscompiled(pad) is expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("c = ConvTranspose(x, w) y = Add(c, k)", True),
        ("c = ConvTranspose(x, w) y = Add(k, c)", True),
        ("c = ConvTranspose(x, w) r = Relu(c) y = Add(r, k)", True),
        ("c = ConvTranspose(x, w) r = Sigmoid(c) y = Add(r, k)", False),
        ("c = ConvTranspose(x, w) y = Sub(c, k)", False),
        ("c = ConvTranspose(x, w) y = Add(c, n)", False),
        ("c = ConvTranspose(x, w) y = Add(c, x)", False),
        ("c = Conv(x, w) y = Add(c, k)", False),
    ],
)
def test_a_constant_added_to_a_transposed_convolution_is_found(nodes: str, expected: bool) -> None:
    text = f"g (float[1,2,9,9] x) => (float[1,2,9,9] y) <float n = {{2}}> {{ {nodes} }}"
    model = model_from(text, w=normal(2, 2, 1, 1), k=normal(2, 1, 1))
    assert any(conv_transpose_add.is_miscompiled(node) for node in model.graph) is expected


@pytest.mark.parametrize(
    ("attributes", "weight", "expected"),
    [
        ("group=8, pads=[1,0,0,0]", (8, 1, 1, 1), True),
        ("group=8, pads=[2,0,1,2], strides=[1,2]", (8, 1, 1, 1), True),
        ("group=8, pads=[1,0,0,0], strides=[2,2]", (8, 1, 1, 1), False),
        ("group=8, pads=[1,1,1,1]", (8, 1, 1, 1), False),
        ("group=8, pads=[0,0,1,1]", (8, 1, 1, 1), False),
        ("group=8", (8, 1, 1, 1), False),
        ("group=8, pads=[1,0,0,0]", (16, 1, 1, 1), False),
        ("group=4, pads=[1,0,0,0]", (8, 2, 1, 1), False),
        ("group=8, pads=[1,0,1,0]", (8, 1, 3, 1), False),
    ],
)
def test_a_convolution_of_single_channels_is_found_by_its_pads(
    attributes: str, weight: tuple[int, ...], expected: bool
) -> None:
    text = f"g (float[1,8,9,9] x) => (float[a,b,c,d] y) {{ y = Conv<{attributes}>(x, w) }}"
    (node,) = model_from(text, w=normal(*weight)).graph
    assert padded_channels.is_miscompiled(node) is expected


@pytest.mark.parametrize("steps", [46.2, 110.7351589, 111.0, 5000.5])
def test_the_scale_of_a_softmax_is_rounded_up_to_a_step_and_then_stays(steps: float) -> None:
    node, scale = layer_norm(4, -1), steps * softmax.STEP
    exact = np.float32(softmax.exact_scale(node, DType.U16, scale))
    assert scale <= exact < scale + softmax.STEP * 1.01
    assert softmax.logit_error(float(exact)) < 1e-4
    assert np.float32(softmax.exact_scale(node, DType.U16, float(exact))) == exact
    assert softmax.exact_scale(node, DType.U8, scale) == scale


def test_a_scale_of_a_softmax_that_is_truncated_is_a_warning(tmp_path: Path) -> None:
    text = case_texts("Q558", "bad")["Q558.bad.onnxtxt"]
    severities = {
        scale: [f.severity for f in findings_in(text.replace("0.000002}", f"{scale}}}"), tmp_path) if f.code == "Q558"]
        for scale in ("0.000002", "0.0000183", "0.0000201617")
    }
    assert list(severities.values()) == [[Severity.ERROR], [Severity.WARNING], []]


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("AveragePool", "kernel_shape=[2,2], strides=[2,2], pads=[1,1,0,0]", True),
        ("AveragePool", "kernel_shape=[2,2], pads=[0,0,1,0], count_include_pad=1", True),
        ("AveragePool", "kernel_shape=[1,3], strides=[1,3], pads=[0,1,0,1]", True),
        ("AveragePool", "kernel_shape=[2,2], strides=[2,2]", False),
        ("AveragePool", "kernel_shape=[3,3], strides=[2,2], pads=[1,1,0,0]", True),
        ("AveragePool", "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], count_include_pad=1", False),
        ("AveragePool", "kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1", False),
        ("MaxPool", "kernel_shape=[2,2], strides=[2,2], pads=[0,1,1,0]", True),
        ("AveragePool", "kernel_shape=[3,3], pads=[0,2,0,2], count_include_pad=1", True),
        ("MaxPool", "kernel_shape=[2,2], strides=[2,2], pads=[1,1,0,0]", True),
        ("MaxPool", "kernel_shape=[2,2], strides=[2,2]", False),
        ("MaxPool", "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]", False),
    ],
)
def test_padded_pooling_is_found_by_its_window(op: str, attributes: str, expected: bool) -> None:
    (node,) = model_from(f"g (float[1,2,9,9] x) => (float[a,b,c,d] y) {{ y = {op}<{attributes}>(x) }}").graph
    assert pooling.may_be_miscompiled(node) is expected


@pytest.mark.parametrize(
    ("modes", "scales", "expected"),
    [
        ('mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"', "1,1,2,2", False),
        ('mode="nearest", nearest_mode="round_prefer_floor"', "1,1,2,2", False),
        ('mode="nearest", nearest_mode="floor"', "1,1,2,2", True),
        ('mode="nearest", nearest_mode="round_prefer_floor"', "1,1,1.5,1.5", True),
        ('mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="ceil"', "1,1,2,2", True),
        ('mode="linear"', "1,1,2,2", False),
        ('mode="linear"', "1,1,0.5,0.5", False),
        ('mode="linear"', "1,1,0.4,0.4", True),
        ('mode="cubic"', "1,1,2,2", False),
    ],
)
def test_a_resize_that_reads_other_positions_is_found(modes: str, scales: str, expected: bool) -> None:
    text = f"g (float[1,2,8,4] x) => (float[a,b,c,d] y) <float[4] s = {{{scales}}}> {{ y = Resize<{modes}>(x, , s) }}"
    (node,) = model_from(text).graph
    assert resize.is_miscompiled(node) is expected


@pytest.mark.parametrize(
    ("modes", "scales", "expected"),
    [
        ('mode="cubic"', "1,1,2,2", False),
        ('mode="cubic"', "1,1,1.3,1.5", True),
        ('mode="cubic", exclude_outside=1', "1,1,2,2", True),
        ('mode="linear", antialias=1', "1,1,0.5,0.5", True),
        ('mode="linear"', "1,1,0.4,0.4", False),
    ],
)
def test_an_interpolation_that_is_rejected_or_weighted_differently_is_found(
    modes: str, scales: str, expected: bool
) -> None:
    text = f"g (float[1,2,8,4] x) => (float[a,b,c,d] y) <float[4] s = {{{scales}}}> {{ y = Resize<{modes}>(x, , s) }}"
    (node,) = model_from(text).graph
    assert resize.is_weighted_differently(node) is expected


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        ("d = Conv(x, w)", False),
        ("c = Conv(x, w) d = Relu(c)", False),
        ("c = Conv(x, w) d = Add(c, x)", True),
        ("c = Conv(x, w) e = Add(c, x) d = Relu(e)", True),
        ("c = Conv(x, w) d = Sigmoid(c)", True),
        ("d = Relu(x)", True),
    ],
)
def test_the_operator_before_it_decides_about_a_group_norm(front: str, expected: bool) -> None:
    for channels in (16, 48, 128):
        text = f"""g (float[1,{channels},4,4] x) => (float[1,2,{8 * channels}] y) <int64[3] s = {{1,2,{8 * channels}}}>
            {{ {front} r = Reshape(d, s) y = InstanceNormalization(r, o, o) }}"""
        model = model_from(text, w=normal(channels, channels, 1, 1), o=normal(2))
        (*_, norm) = model.graph
        assert group_norm.may_be_miscompiled(norm) is expected
        (change,) = group_norm.WORKAROUND.passes
        assert bool(change(model).changed) is expected


def test_an_instance_norm_of_channels_is_not_a_group_norm() -> None:
    (node,) = model_from(
        "g (float[1,8,4] x) => (float[1,8,4] y) { y = InstanceNormalization(x, o, o) }", o=normal(8)
    ).graph
    assert not group_norm.may_be_miscompiled(node)


@pytest.mark.parametrize(("dtype", "longest"), long_layer_norm.LONGEST.items())
@pytest.mark.parametrize("option", ["on", "off"])
def test_the_length_limits_a_layer_norm_in_integers(dtype: DType, longest: int, option: str) -> None:
    rows = open_target("qnn-htp:sm8550", {"workarounds": option}).table.ops["LayerNormalization"].signatures
    (when,) = [row.when for row in rows if row.output.dtype is dtype]
    assert when is not None
    reasons = [when(layer_norm(length, axis)) for length, axis in ((longest, -1), (longest + 1, -1), (4, 0))]
    assert [bool(reason) for reason in reasons] == [False, option == "on", True]
    assert ("Q547" in reasons[1]) is (option == "on")


def layer_norm(length: int, axis: int) -> ir.Node:
    text = (
        f"g (float[1,{length}] x, float[n] s) => (float[1,{length}] y) {{ y = LayerNormalization<axis={axis}>(x, s) }}"
    )
    (node,) = model_from(text).graph
    return node


def test_every_workaround_has_a_rule() -> None:
    assert [find_rule(workaround.code).code for workaround in WORKAROUNDS] == [each.code for each in WORKAROUNDS]


def test_a_workaround_ends_with_the_version_that_is_fixed() -> None:
    fixed = Workaround("Q541", fixed_in=(2, 60))
    assert fixed.needed_with(None)
    assert fixed.needed_with((2, 59))
    assert not fixed.needed_with((2, 60))
    assert needed((2, 51)) == needed(None) == WORKAROUNDS


def test_the_option_switches_all_of_them_off() -> None:
    on, off = open_target("qnn-htp:sm8550"), open_target("qnn-htp:sm8550", {"workarounds": "off"})
    assert off.table.ops["Mul"].rescaled is None
    assert len(off.rewrites.graph) == len(on.rewrites.graph) - sum(len(each.passes) for each in WORKAROUNDS)
    with pytest.raises(InputError, match="workarounds=no: expected one of on, off"):
        open_target("qnn-htp:sm8550", {"workarounds": "no"})
