"""Known miscompilations of the real compiler: without workarounds the emulator differs from the simulation, with them
it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.config import options_from
from dovetail.finding import Status
from dovetail.float_graph import prepared
from dovetail.job import prepare
from dovetail.model.edit import attribute, is_op
from dovetail.op_support import FP16, W8A8, W8A16, Precision
from dovetail.pipeline import fit
from dovetail.report.result import Result
from dovetail.targets import open_target
from tests.backends.qnn_htp.agreement import agreement_db, rewritten_agreement_db
from tests.equality import model_from, normal, ops
from tests.planning import noise, planned

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

OFF = {"workarounds": "off"}


def behind_conv(nodes: str, rows: int, columns: int, batch: int = 1) -> ir.Model:
    shape = f"{batch},8,{rows},{columns}"
    return model_from(
        f"g (float[{shape}] x) => (float[{shape}] y) {{ c = Conv(x, w) {nodes} }}", w=normal(8, 8, 1, 1) / np.float32(3)
    )


def silu(rows: int, columns: int, batch: int = 1) -> ir.Model:
    return behind_conv("s = Sigmoid(c) y = Mul(c, s)", rows, columns, batch)


def silu_of_tokens() -> ir.Model:
    text = "g (float[1,10,20,8] x) => (float[1,10,20,8] y) { c = MatMul(x, w) s = Sigmoid(c) y = Mul(c, s) }"
    return model_from(text, w=normal(8, 8))


def padded(pads: str, shape: str, consumer: str = "y = Neg(p)") -> ir.Model:
    text = f"""g (float[1,4,9,8] x) => (float[{shape}] y) <int64[8] pads = {{{pads}}}>
        {{ n = Neg(x) p = Pad(n, pads) {consumer} }}"""
    return model_from(text, w=normal(4, 4, 3, 3))


def padded_with(value: float) -> ir.Model:
    constants = f"<int64[8] pads = {{0,0,0,0,0,0,1,1}}, float v = {{{value}}}>"
    text = f"""g (float[1,16,14,21] x) => (float[1,16,15,22] y) {constants}
        {{ n = Neg(x) p = Pad(n, pads, v) y = Neg(p) }}"""
    return model_from(text)


def padded_tokens(before: int, after: int) -> ir.Model:
    """One row at the start, one at the end, and columns of zeros."""
    text = f"""g (float[1,5,4] x) => (float[1,7,c] y) <int64[6] pads = {{0,1,{before},0,1,{after}}}>
        {{ n = Neg(x) p = Pad(n, pads) y = Neg(p) }}"""
    return model_from(text)


def padded_between(consumer: str, value: float = 0.0) -> ir.Model:
    """One row and one column at each end, between a convolution and another operator on images."""
    constants = (
        f"int64[8] pads = {{0,0,1,1,0,0,1,1}}, float v = {{{value}}}, int64[2] hw = {{2,3}}, int64[1] ch = {{1}}"
    )
    text = f"""g (float[1,8,10,20] x) => (float[a,b,c,d] y) <{constants}>
        {{ c = Conv(x, w) p = Pad(c, pads, v) y = {consumer} }}"""
    return model_from(text, w=normal(8, 8, 1, 1) / np.float32(3), k=normal(8, 8, 3, 3))


def padded_with_border() -> ir.Model:
    text = """g (float[1,4,9,26] x) => (float[1,4,11,28] y) <int64[8] pads = {0,0,1,1,0,0,1,1}>
        { n = Neg(x) p = Pad<mode="edge">(n, pads) y = Neg(p) }"""
    return model_from(text)


def resized(attributes: str, scales: str, shape: str) -> ir.Model:
    text = f"""g (float[1,4,16,8] x) => (float[{shape}] y) <float[4] scales = {{{scales}}}>
        {{ n = Neg(x) r = Resize<{attributes}>(n, , scales) y = Neg(r) }}"""
    return model_from(text)


def pooled(op: str, attributes: str, shape: str = "1,8,12,12") -> ir.Model:
    text = f"g (float[{shape}] x) => (float[a,b,c,d] y) {{ n = Neg(x) y = {op}<{attributes}>(n) }}"
    return model_from(text)


def transposed(groups: int, channels: int = 8) -> ir.Model:
    """A ConvTranspose that doubles the size."""
    attributes = f"group={groups}, strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]"
    nodes = f"n = Neg(x) y = ConvTranspose<{attributes}>(n, w, b)"
    text = f"g (float[1,8,9,10] x) => (float[1,{channels},18,20] y) {{ {nodes} }}"
    return model_from(text, w=normal(8, channels // groups, 3, 3), b=normal(channels))


def added_to_transposed(nodes: str) -> ir.Model:
    """A constant per channel after a ConvTranspose whose output is read twice, so that it is not added to its bias."""
    shape = "1,6,9,10"
    body = f"c = ConvTranspose(x, w) {nodes} z = Neg(c)"
    text = f"g (float[{shape}] x) => (float[{shape}] y, float[{shape}] z) {{ {body} }}"
    return model_from(text, w=normal(6, 6, 1, 1) / np.float32(2), k=normal(1, 6, 1, 1))


def padded_channels(pads: str, strides: str = "1,1", channels: int = 8) -> ir.Model:
    """A scale per channel, with padding."""
    attributes = f"group={channels}, pads=[{pads}], strides=[{strides}]"
    text = f"g (float[1,{channels},9,13] x) => (float[a,b,c,d] y) {{ n = Neg(x) y = Conv<{attributes}>(n, w, b) }}"
    return model_from(text, w=normal(channels, 1, 1, 1), b=normal(channels))


def padded_gray_image() -> ir.Model:
    """A Pad of one channel, which is written as a convolution."""
    text = """g (float[1,1,5,4] x) => (float[1,1,7,6] y) <int64[8] pads = {0,0,1,0,0,0,1,2}>
        { n = Neg(x) p = Pad(n, pads) y = Neg(p) }"""
    return model_from(text)


def repeated_rows() -> ir.Model:
    text = "g (float[1,8,16,8] x) => (float[1,8,32,8] y) { n = Neg(x) g = Gather<axis=2>(n, rows) y = Neg(g) }"
    return model_from(text, rows=np.repeat(np.arange(16), 2))


def clipped() -> ir.Model:
    """A Relu6 that is concatenated with values of a wider range."""
    text = """g (float[1,8,13,10] x) => (float[1,16,13,10] y) <float low = {0}, float high = {0.5}, float five = {5}>
        { c = Conv(x, w) r = Clip(c, low, high) n = Mul(x, five) y = Concat<axis=1>(r, n) }"""
    return model_from(text, w=normal(8, 8, 1, 1) / np.float32(3))


def clipped_and_resized() -> ir.Model:
    """A Relu6 of half the size, in a feature pyramid."""
    attributes = 'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"'
    constants = "float low = {0}, float high = {0.5}, float five = {5}, float[4] twice = {1, 1, 2, 2}"
    text = f"""g (float[1,6,18,24] x) => (float[1,12,18,24] y) <{constants}>
        {{ c = Conv<strides=[2,2]>(x, w) r = Clip(c, low, high) z = Resize<{attributes}>(r, , twice) n = Mul(x, five)
           y = Concat<axis=1>(z, n) }}"""
    return model_from(text, w=normal(6, 6, 1, 1) / np.float32(3))


def normalized_tokens() -> ir.Model:
    """The queries of cosine attention of four images, with a position embedding."""
    text = """g (float[4,24,20] x) => (float[4,24,20] y)
        { a = Add(x, k) h = MatMul(a, w) g = Add(h, b) n = LpNormalization<axis=-1>(g) y = Neg(n) }"""
    return model_from(text, k=normal(1, 24, 20), w=normal(20, 20), b=normal(20))


def normalized_padding() -> ir.Model:
    """The keys of cosine attention, without bias, of five tokens that are padded to eight."""
    text = """g (float[1,5,16] x) => (float[1,8,16] y) <int64[6] pads = {0,0,0,0,3,0}>
        { a = Gelu(x) p = Pad(a, pads) h = MatMul(p, w) n = LpNormalization<axis=-1>(h) y = Neg(n) }"""
    return model_from(text, w=normal(16, 16))


def group_norm(front: str, groups: int = 2) -> ir.Model:
    text = f"""g (float[1,48,4,6] x) => (float[1,48,4,6] y)
        <int64[3] flat = {{1,{groups},{1152 // groups}}}, int64[4] back = {{1,48,4,6}}>
        {{ {front} q = Reshape(d, flat) n = InstanceNormalization(q, one, zero) p = Reshape(n, back)
           o = Mul(p, m) u = Add(o, a) y = Conv(u, w, c) }}"""
    return model_from(
        text,
        w=normal(48, 48, 1, 1) / np.float32(7),
        c=normal(48, seed=1) / np.float32(10),
        m=1 + normal(48, 1, 1) / np.float32(50),
        a=normal(48, 1, 1, seed=2) / np.float32(50),
        one=np.ones(groups, np.float32),
        zero=np.zeros(groups, np.float32),
    )


def long_layer_norm(length: int) -> ir.Model:
    shape = f"1,2,{length}"
    text = f"g (float[{shape}] x) => (float[{shape}] y) {{ a = Relu(x) n = LayerNormalization(a, s, b) y = Neg(n) }}"
    return model_from(text, s=np.ones(length, np.float32), b=np.zeros(length, np.float32))


RESIDUAL = "r = Conv(x, w, c) d = Add(r, x)"
TWO = "kernel_shape=[2,2], strides=[2,2]"
THREE = "kernel_shape=[3,3], strides=[3,3]"
FLOOR = 'mode="nearest", nearest_mode="floor"'
CASES = {
    "gather of repeated rows": (repeated_rows(), W8A16),
    "clip before a concat": (clipped(), W8A16),
    "clip before a resize and a concat": (clipped_and_resized(), W8A16),
    "silu": (silu(10, 12), W8A16),
    "silu, batch 4": (silu(12, 9, 4), W8A16),
    "silu, narrow": (silu(17, 7), W8A16),
    "silu, channels last": (silu_of_tokens(), W8A16),
    "lp normalization of a batch": (normalized_tokens(), W8A16),
    "lp normalization of padding": (normalized_padding(), W8A16),
    "mish": (behind_conv("s = Softplus(c) t = Tanh(s) y = Mul(c, t)", 10, 12), W8A16),
    "softplus": (behind_conv("s = Softplus(c) y = Neg(s)", 13, 8), W8A16),
    "pad, 16 bits": (padded("0,0,0,0,0,0,1,1", "1,4,10,9"), W8A16),
    "pad, 8 bits": (padded("0,0,1,0,0,0,1,2", "1,4,11,10"), W8A8),
    "pad with another value": (padded_with(0.5), W8A16),
    "pad with another value, float16": (padded_with(0.5), FP16),
    "pad with the border, float16": (padded_with_border(), FP16),
    "pad of tokens, 16 bits": (padded_tokens(0, 2), W8A16),
    "pad of tokens, 8 bits": (padded_tokens(0, 2), W8A8),
    "pad before an average pool, 16 bits": (padded_between("AveragePool<kernel_shape=[2,2]>(p)"), W8A16),
    "pad before an average pool, 8 bits": (padded_between("AveragePool<kernel_shape=[2,2]>(p)"), W8A8),
    "pad before an average pool, float16": (padded_between("AveragePool<kernel_shape=[2,2]>(p)"), FP16),
    "pad before a global average pool, 16 bits": (padded_between("GlobalAveragePool(p)"), W8A16),
    "pad before a global average pool, 8 bits": (padded_between("GlobalAveragePool(p)"), W8A8),
    "pad before a global average pool, float16": (padded_between("GlobalAveragePool(p)"), FP16),
    "pad before a mean, 16 bits": (padded_between("ReduceMean(p, hw)"), W8A16),
    "pad before a mean, 8 bits": (padded_between("ReduceMean<keepdims=0>(p, hw)"), W8A8),
    "pad with another value before a mean": (padded_between("ReduceMean(p, hw)", 0.5), W8A16),
    "pad before a padded max pool": (padded_between("MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(p)"), W8A16),
    "pad before a transposed convolution": (padded_between("ConvTranspose(p, k)"), W8A16),
    "pad with another value before a convolution": (padded_between("Conv<pads=[1,1,1,1]>(p, k)", 0.5), W8A16),
    "pad before a convolution": (padded("0,0,0,0,0,0,1,1", "1,4,4,4", "y = Conv<strides=[2,2]>(p, w)"), W8A16),
    "group norm after Add, 16 bits": (group_norm(RESIDUAL), W8A16),
    "group norm after Add, 8 bits": (group_norm(RESIDUAL, 1), W8A8),
    "group norm after LeakyRelu": (group_norm("r = Conv(x, w, c) e = Add(r, x) d = LeakyRelu(e)"), W8A16),
    "long layer norm, 8 bits": (long_layer_norm(66000), W8A8),
    "average pool, 16 bits": (pooled("AveragePool", f"{TWO}, pads=[1,1,0,0], count_include_pad=1"), W8A16),
    "average pool, 8 bits": (pooled("AveragePool", f"{TWO}, pads=[1,1,1,1], count_include_pad=1"), W8A8),
    "average pool that does not count its padding": (pooled("AveragePool", f"{THREE}, pads=[1,1,1,1]"), W8A16),
    "average pool, float16": (pooled("AveragePool", f"{TWO}, pads=[1,1,0,0]"), FP16),
    "average pool of 3 x 3, float16": (pooled("AveragePool", "kernel_shape=[3,3], pads=[1,1,1,1]", "1,4,11,17"), FP16),
    "max pool, float16": (pooled("MaxPool", f"{TWO}, pads=[1,1,1,1]"), FP16),
    "depthwise transposed convolution, 16 bits": (transposed(8), W8A16),
    "depthwise transposed convolution, 8 bits": (transposed(8), W8A8),
    "constant added to a transposed convolution, 16 bits": (added_to_transposed("y = Add(c, k)"), W8A16),
    "constant added to a transposed convolution, 8 bits": (added_to_transposed("r = Relu(c) y = Add(k, r)"), W8A8),
    "padded scale per channel": (padded_channels("1,0,1,2"), W8A8),
    "padded scale per channel, strided": (padded_channels("2,0,0,0", "1,2"), W8A8),
    "padded scale of one channel": (padded_channels("1,0,0,0", channels=1), W8A8),
    "resize, floor": (resized(FLOOR, "1,1,2,2", "1,4,32,16"), W8A16),
    "resize, float16": (resized(FLOOR, "1,1,2,2", "1,4,32,16"), FP16),
    "resize, cubic, outside excluded": (resized('mode="cubic", exclude_outside=1', "1,1,0.5,0.5", "1,4,8,4"), W8A16),
    "resize, linear": (resized('mode="linear"', "1,1,0.3,0.3", "1,4,4,2"), W8A16),
}


@pytest.mark.parametrize(("model", "precision"), CASES.values(), ids=CASES.keys())
def test_the_workaround_is_needed_and_helps(model: ir.Model, precision: Precision, tmp_path: Path) -> None:
    data = noise(model, 2)
    naive, ours = open_target("qnn-htp:sm8550", OFF), open_target("qnn-htp:sm8550")
    wrong = rewritten_agreement_db(model.clone(), naive, precision, data, tmp_path / "naive")
    right = rewritten_agreement_db(model.clone(), ours, precision, data, tmp_path / "ours")
    assert wrong < 30
    assert right > (35 if precision is W8A8 else 55)


@pytest.mark.parametrize("chip", ["v68", "sm8450", "sm8650", "sm8750", "sm8850"])
def test_other_chips_have_the_same_miscompilation_of_silu(chip: str, tmp_path: Path) -> None:
    model = silu(10, 12)
    data = noise(model, 2)
    naive, ours = open_target(f"qnn-htp:{chip}", OFF), open_target(f"qnn-htp:{chip}")
    assert rewritten_agreement_db(model.clone(), naive, W8A16, data, tmp_path / "naive") < 30
    assert rewritten_agreement_db(model.clone(), ours, W8A16, data, tmp_path / "ours") > 50


ON_OTHER_CHIPS = {
    "pad of tokens": (padded_tokens(0, 2), W8A16, ("sm8450", "sm8850")),
    "constant added to a transposed convolution": (added_to_transposed("y = Add(c, k)"), W8A16, ("sm8450", "sm8850")),
    "padded scale per channel": (padded_channels("1,0,1,2"), W8A8, ("sm8850",)),
}


@pytest.mark.parametrize(("model", "precision", "chips"), ON_OTHER_CHIPS.values(), ids=ON_OTHER_CHIPS.keys())
def test_other_chips_have_the_same_miscompilation(
    model: ir.Model, precision: Precision, chips: tuple[str, ...], tmp_path: Path
) -> None:
    data = noise(model, 2)
    for chip in chips:
        naive, ours = open_target(f"qnn-htp:{chip}", OFF), open_target(f"qnn-htp:{chip}")
        assert rewritten_agreement_db(model.clone(), naive, precision, data, tmp_path / f"naive_{chip}") < 30
        assert rewritten_agreement_db(model.clone(), ours, precision, data, tmp_path / f"ours_{chip}") > 35


@pytest.mark.parametrize(
    "consumer", ["Conv<pads=[1,1,1,1]>(p, k)", "MaxPool<kernel_shape=[3,3]>(p)", "ReduceMean(p, ch)", "Neg(p)"]
)
def test_a_pad_with_zeros_before_another_operator_is_right_as_it_is(consumer: str, tmp_path: Path) -> None:
    model, target = padded_between(consumer), open_target("qnn-htp:sm8550")
    model_of_ours = prepared(model.clone(), target)
    assert "Pad" in ops(model_of_ours)
    assert agreement_db(model_of_ours, target, W8A16, noise(model, 2), tmp_path) > 60


def test_a_pad_of_one_channel_is_a_convolution_of_two_columns(tmp_path: Path) -> None:
    model, target = padded_gray_image(), open_target("qnn-htp:sm8550")
    model_of_ours = prepared(model.clone(), target)
    (conv,) = [node for node in model_of_ours.graph if is_op(node, "Conv")]
    assert list(attribute(conv, "kernel_shape", ())) == [1, 2]
    assert agreement_db(model_of_ours, target, W8A8, noise(model, 2), tmp_path) > 35


@pytest.mark.parametrize("precision", [W8A8, W8A16])
def test_a_pad_with_the_border_is_right_in_integers_with_and_without_its_workaround(
    precision: Precision, tmp_path: Path
) -> None:
    model = padded_with_border()
    for number, option in enumerate((OFF, {})):
        target = open_target("qnn-htp:sm8550", option)
        assert rewritten_agreement_db(model.clone(), target, precision, noise(model, 2), tmp_path / str(number)) > 45


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (13, 9), (20, 20)])
def test_a_silu_of_another_size_is_right_and_not_requantized(rows: int, columns: int, tmp_path: Path) -> None:
    model = silu(rows, columns)
    result = fitted(model, tmp_path)
    assert result.verdicts["numerics"].status is Status.PASS
    assert not [row for row in result.plan if row.edge is not None and row.edge.node.startswith("Mul")]


@pytest.mark.parametrize("front", ["d = Conv(x, w, c)", "r = Conv(x, w, c) d = Relu(r)"])
def test_a_group_norm_behind_a_convolution_is_right_as_it_is(front: str, tmp_path: Path) -> None:
    model, target = group_norm(front), open_target("qnn-htp:sm8550")
    model_of_ours = prepared(model.clone(), target)
    assert "InstanceNormalization" in ops(model_of_ours)
    assert agreement_db(model_of_ours, target, W8A16, noise(model, 2), tmp_path) > 60


@pytest.mark.parametrize(
    ("attributes", "scales", "shape"),
    [('mode="cubic"', "1,1,1.3,1.3", "1,4,20,10"), ('mode="linear", antialias=1', "1,1,0.5,0.5", "1,4,8,4")],
)
def test_a_resize_that_the_provider_rejects_is_computed_by_matmuls(
    attributes: str, scales: str, shape: str, tmp_path: Path
) -> None:
    model = resized(attributes, scales, shape)
    verdict = fitted(model, tmp_path, **OFF).verdicts["compiled"]
    assert verdict.status is Status.FAIL
    assert "Resize" in verdict.reason
    ours = open_target("qnn-htp:sm8550")
    assert rewritten_agreement_db(model.clone(), ours, W8A16, noise(model, 2), tmp_path / "ours") > 55


@pytest.mark.parametrize(("groups", "channels"), [(2, 8), (4, 12), (8, 16)])
def test_a_transposed_convolution_with_groups_of_several_channels_compiles(
    groups: int, channels: int, tmp_path: Path
) -> None:
    model, target = transposed(groups, channels), open_target("qnn-htp:sm8550")
    assert rewritten_agreement_db(model, target, W8A16, noise(model, 2), tmp_path) > 55


def test_a_long_layer_norm_is_kept_in_float16_and_others_are_not() -> None:
    target = open_target("qnn-htp:sm8550")
    for length, dtypes in ((66000, {"uint8", "float16"}), (4000, {"uint8"})):
        plan = planned(long_layer_norm(length), target, W8A8)
        assert {str(choice.storage.dtype) for name, choice in plan.tensors.items() if name != "x"} == dtypes


def fitted(model: ir.Model, folder: Path, chip: str = "sm8550", **option: str) -> Result:
    path = folder / "model.onnx"
    ir.save(model, path)
    options = options_from({"target": f"qnn-htp:{chip}", "precision": "w8a16", "option": option})
    return fit(prepare(path, options, calibration=noise(model)), folder / "run")


def test_without_workarounds_the_verdict_fails_and_the_rule_is_among_the_findings(tmp_path: Path) -> None:
    """On a chip without float16, in which the wrong operator would be kept instead."""
    result = fitted(silu(10, 12), tmp_path, "qcs6490", **OFF)
    assert result.verdicts["numerics"].status is Status.FAIL
    assert "target and simulation disagree" in result.verdicts["numerics"].reason
    assert "Q541" in {finding.code for finding in result.findings}


def test_with_workarounds_the_plan_says_what_was_requantized_and_why(tmp_path: Path) -> None:
    result = fitted(silu(10, 12), tmp_path)
    assert all(result.verdicts[name].status is Status.PASS for name in ("compiled", "fidelity", "numerics"))
    assert "Q541" not in {finding.code for finding in result.findings}
    (row,) = [row for row in result.plan if row.edge is not None and row.edge.node.startswith("Mul")]
    assert "Q541" in row.detail
