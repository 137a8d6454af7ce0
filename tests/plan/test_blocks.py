"""Block-quantized weights in a plan: along the input channels in every layout, and what other layers get instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from dovetail.edge import Edge
from dovetail.encoding import DType, Encoding, Granularity, QParams
from dovetail.errors import InputError
from dovetail.float_graph import cut, rewrite
from dovetail.model.session import Mode
from dovetail.numerics.affine import fake_quantize
from dovetail.numerics.lpbq import channel_scales
from dovetail.numerics.ranges import weight_params
from dovetail.op_support import W4A16, W4A16_BQ, W4A16_LPBQ, W8A8, W8A16, Precision
from dovetail.passes.normalize import normalize
from dovetail.plan.requested_weights import RequestedWeights
from dovetail.plan.rows import read_plan, write_plan
from dovetail.plan.validate import validate_plan
from dovetail.storage import Choice, Plan
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.targets.ort_cpu.target import ORT_CPU
from dovetail.verify.low_accuracy import wider_precisions
from dovetail.verify.run import SessionRun
from tests.block_layers import BIAS, LAYERS, OUT, layer_model, weight_of
from tests.planning import graph, noise, planned


def sized(precision: Precision, size: int) -> Precision:
    return replace(precision, weight=replace(precision.weight, block_size=size))


def weight_choice(model: ir.Model, plan: Plan) -> Choice:
    (node,) = [node for node in model.graph if node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose")]
    return plan.edges[Edge(node.name or "", 1)]


@pytest.mark.parametrize("precision", [W4A16_BQ, W4A16_LPBQ], ids=lambda precision: precision.name)
@pytest.mark.parametrize("layer", LAYERS)
def test_blocks_are_along_the_input_channels(layer: str, precision: Precision) -> None:
    model = layer_model(layer)
    plan = planned(model, ORT_CPU, sized(precision, 16))
    validate_plan(plan, model, ORT_CPU.table)
    params, axis = weight_choice(model, plan).storage, LAYERS[layer][3]
    assert isinstance(params, QParams)
    assert (params.axis, params.encoding) == (axis, replace(precision.weight, block_size=16))
    assert params.scale.shape == tuple(n // 16 if i == axis else n for i, n in enumerate(weight_of(layer, 64).shape))
    assert params == weight_params(weight_of(layer, 64), params.encoding, axis)


@pytest.mark.parametrize("layer", LAYERS)
def test_normalized_and_rewritten_the_same_weight_has_the_same_blocks(layer: str) -> None:
    """Every Gemm becomes MatMul with a weight [input channels, output channels], and a Conv stays what it is."""
    precision = sized(W4A16_LPBQ, 16)
    original = layer_model(layer)
    head = cut(normalize(original)[0], ORT_CPU).head
    model, _ = rewrite(head, ORT_CPU, original, RequestedWeights(precision))
    assert not any(node.op_type == "Gemm" for node in model.graph)
    params = weight_choice(model, planned(model, ORT_CPU, precision)).storage
    weight = weight_of(layer, 64)
    if layer in ("Gemm transB", "Gemm both"):
        weight = weight.T
    assert params == weight_params(weight, replace(W4A16_LPBQ.weight, block_size=16), 1 if layer == "Conv" else 0)


@pytest.mark.parametrize("layer", LAYERS)
def test_channels_that_cannot_be_divided_are_quantized_per_channel_with_the_reason(layer: str) -> None:
    model = layer_model(layer, 40)
    choice = weight_choice(model, planned(model, ORT_CPU, sized(W4A16_LPBQ, 16)))
    assert choice.storage.dtype is DType.S4
    assert isinstance(choice.storage, QParams)
    assert choice.storage.encoding.granularity is Granularity.AXIS
    assert "its 40 input channels are not a multiple of the block size 16" in choice.detail


def conv_model(kernel: int, group: int = 1, op: str = "Conv") -> ir.Model:
    weight = np.random.default_rng(0).standard_normal((32, 32 // group, kernel, kernel))
    numbers = ", ".join(f"{value:.6g}" for value in weight.reshape(-1))
    shape = ",".join(map(str, weight.shape))
    return graph(
        f"g (float[1,32,5,5] x) => (float[1,32,h,v] y) <float[{shape}] w = {{{numbers}}}> "
        f"{{ y = {op} <group = {group}> (x, w) }}"
    )


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (conv_model(3), "only convolutions of 1 x 1"),
        (conv_model(1, 2), "convolutions with groups"),
        (conv_model(3, op="ConvTranspose"), "has no kernel for block-quantized weights"),
        (conv_model(1, op="ConvTranspose"), "has no kernel for block-quantized weights"),
    ],
)
@pytest.mark.parametrize("target", ["ort-cpu", "qnn-htp:sm8550"])
def test_a_layer_without_a_kernel_for_blocks_is_int8_with_the_reason(target: str, model: ir.Model, reason: str) -> None:
    choice = weight_choice(model, planned(model, open_target(target), W4A16_LPBQ))
    assert choice.storage.dtype is DType.S8
    assert reason in choice.detail


def test_htp_has_expanded_blocks_only_for_channels_that_it_computes_correctly() -> None:
    htp = open_target("qnn-htp:sm8550")
    choices = {
        channels: weight_choice(model, planned(model, htp, sized(W4A16_LPBQ, 16)))
        for channels in (48, 64)
        for model in (layer_model("MatMul", channels),)
    }
    assert "wrongly for 48 input channels, which are not a multiple of 32" in choices[48].detail
    assert choices[48].storage.dtype is DType.S8
    assert choices[64].storage.dtype is DType.S4


def test_per_channel_precision_has_no_blocks_and_other_precisions_are_unchanged() -> None:
    model = layer_model("MatMul")
    choice = weight_choice(model, planned(model, ORT_CPU, W4A16))
    assert isinstance(choice.storage, QParams)
    assert choice.storage.encoding == W4A16.weight
    assert "not in blocks" not in choice.detail
    wide = weight_choice(model, planned(model, ORT_CPU, W8A16))
    assert wide.storage.dtype is DType.S8


@pytest.mark.parametrize("precision", [W4A16_BQ, W4A16_LPBQ], ids=lambda precision: precision.name)
@pytest.mark.parametrize("layer", ["Gemm", "Gemm transB", "Conv"])
def test_the_bias_beside_blocks_has_the_scale_of_the_integers(layer: str, precision: Precision, tmp_path: Path) -> None:
    model = layer_model(layer)
    data = noise(model)
    plan = planned(model, ORT_CPU, sized(precision, 16), data=data)
    (node,) = model.graph
    weight, bias = (plan.edges[Edge(node.name or "", index)].storage for index in (1, 2))
    source = plan.tensors["x"].storage
    assert isinstance(weight, QParams)
    assert isinstance(bias, QParams)
    assert isinstance(source, QParams)
    assert bias.dtype is DType.S32
    np.testing.assert_allclose(bias.scale, source.scale * channel_scales(weight), rtol=1e-6)
    (artifact, *_) = ORT_CPU.backend.emit(model, plan, tmp_path)
    sample = {"x": data["x"][0]}
    (output,) = list(SessionRun(artifact.path, Mode.EXACT, tmp_path)([sample]))
    x, w = fake_quantize(sample["x"], source), fake_quantize(weight_of(layer, 64), weight)
    expected = np.einsum("ichw,oc->iohw", x, w[:, :, 0, 0]) if layer == "Conv" else x @ (w.T if "B" in layer else w)
    expected += BIAS.reshape((1, OUT, 1, 1) if layer == "Conv" else (OUT,))
    np.testing.assert_allclose(output["y"], expected, atol=np.abs(expected).max() * 1e-3)


@pytest.mark.parametrize("layer", ["MatMul", "Conv"])
def test_a_nearly_dead_channel_is_raised_to_what_htp_computes_correctly(layer: str) -> None:
    """One scale per channel falls below the least requantization: it is raised, and stays a whole multiple."""
    weight = weight_of(layer, 64)
    dead = weight[:, 3] if layer == "MatMul" else weight[3]
    dead *= 1e-7
    model = layer_model(layer, 64, weight)
    choice = weight_choice(model, planned(model, open_target("qnn-htp:sm8550"), W4A16_LPBQ))
    params = choice.storage
    assert choice.raised_channels == 1
    assert isinstance(params, QParams)
    plain = weight_params(weight, params.encoding, params.axis)
    raised = channel_scales(params) > channel_scales(plain)
    assert raised.tolist() == [channel == 3 for channel in range(OUT)]
    assert params.int_scale is not None
    assert (params.int_scale.max(axis=params.axis) == 16).all()


def test_a_plan_with_expanded_blocks_is_written_and_read_back(tmp_path: Path) -> None:
    model = layer_model("MatMul")
    plan = planned(model, ORT_CPU, W4A16_LPBQ)
    write_plan(plan, model, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json").edges == plan.edges


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axis": None}, "axis"),
        ({"zero_point": 1}, "zero points 0"),
        ({"scale": {"channel": [[1.0] * OUT], "integers": [[17] * OUT] * 2, "bits": 8}}, "from 1 to 16"),
        ({"scale": {"channel": [[1.0] * OUT], "integers": [[1.5] * OUT] * 2, "bits": 8}}, "whole numbers"),
    ],
)
def test_an_edited_plan_with_bad_expanded_blocks_is_refused(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    import json

    model, path = layer_model("MatMul"), tmp_path / "plan.json"
    write_plan(planned(model, ORT_CPU, W4A16_LPBQ), model, path)
    content = json.loads(path.read_text())
    (row,) = [row for row in content["rows"] if row["granularity"] == "expanded_block"]
    row.update(change)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        read_plan(path)


def test_an_edited_plan_with_blocks_along_the_output_channels_is_refused() -> None:
    model = layer_model("MatMul")
    plan = planned(model, ORT_CPU, sized(W4A16_BQ, 8))
    (edge,) = [edge for edge, choice in plan.edges.items() if choice.storage.dtype is DType.S4]
    wrong = weight_params(weight_of("MatMul", 64), Encoding(DType.S4, True, Granularity.BLOCK, 8), 1)
    edited = replace(plan, edges={**plan.edges, edge: replace(plan.edges[edge], storage=wrong)})
    with pytest.raises(InputError, match="not the input channel axis"):
        validate_plan(edited, model, ORT_CPU.table)


def test_every_target_with_blocks_has_them_in_its_table() -> None:
    targets: list[Target] = [ORT_CPU, open_target("qnn-htp:sm8550"), open_target("qnn-htp:v68")]
    names = [{name for name, p in target.table.precisions.items() if p.weight.is_blocked} for target in targets]
    assert names == [{"w4a16-bq", "w4a16-lpbq"}, {"w4a16-bq", "w4a16-lpbq"}, {"w4a16-lpbq"}]
    assert "w4a16-bq" in targets[2].table.unavailable


def test_narrower_weights_are_never_suggested_against_a_loss() -> None:
    assert wider_precisions(ORT_CPU.table, W8A8) == ["fp32", "w8a16"]
    assert wider_precisions(open_target("qnn-htp:sm8550").table, W8A8) == ["fp16", "w8a16"]
