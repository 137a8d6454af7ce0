"""Block-quantized weights on the real HTP compiler: the emulator computes what was simulated, and read-back sees all.

Each layer is compiled alone, from the input that the simulation has there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import dovetail
from dovetail.backend import MODEL, Outcome, ReadBack
from dovetail.encoding import DType, Granularity, QParams, expanded_qparams
from dovetail.errors import UnfinishedError
from dovetail.finding import Status
from dovetail.float_graph import cut, rewrite
from dovetail.model.session import Mode
from dovetail.numerics.affine import quantize
from dovetail.numerics.lpbq import as_expanded, expand_blocks
from dovetail.numerics.ranges import weight_params
from dovetail.op_support import W4_BLOCK, W4A16, W4A16_BQ, W4A16_LPBQ, Precision
from dovetail.passes.normalize import normalize
from dovetail.plan.requested_weights import RequestedWeights
from dovetail.storage import Plan
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.targets.qnn_htp import compile as compiling
from dovetail.verify.run import SessionRun
from tests.block_layers import layer_model, weight_of
from tests.equality import sqnr_db
from tests.planning import graph, noise, planned
from tests.quantized_blocks import BLOCKS_OF_16, blocks, layers, with_integer_scales

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")

# What every layer must reach; with only the scales converted it is 32 to 37 dB.
SAME_DB = 75.0


@pytest.fixture
def htp() -> Target:
    return open_target("qnn-htp:sm8550")


def test_a_wheel_without_the_option_is_not_a_pass(htp: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would compile blocks with float scales, and float16 activations, without a message."""
    monkeypatch.setattr(compiling, "version", lambda package: "2.4.0")
    model, plan, _ = layer_plan("MatMul", htp, sized(W4A16_LPBQ, 32), 64)
    compiled = htp.backend.compile(htp.backend.emit(model, plan, tmp_path), tmp_path)
    assert not compiled.finished
    assert "2.4.0 silently ignores the option enable_block_quant_weight_optimization" in compiled.error


def sized(precision: Precision, size: int) -> Precision:
    return replace(precision, weight=replace(precision.weight, block_size=size))


def layer_plan(
    layer: str, target: Target, precision: Precision, channels: int, *, rewritten: bool = True
) -> tuple[ir.Model, Plan, dict[str, np.ndarray]]:
    """One layer as ``fit`` would plan it, or as it is if not ``rewritten``, and a sample."""
    model = original = layer_model(layer, channels)
    if rewritten:
        model, _ = rewrite(cut(normalize(original)[0], target).head, target, original, RequestedWeights(precision))
    data = noise(model)
    return model, planned(model, target, precision, data=data), {"x": data["x"][0]}


def deployed(
    model: ir.Model, plan: Plan, sample: dict[str, np.ndarray], target: Target, folder: Path
) -> tuple[float, ReadBack]:
    """The SQNR of the emulator's output against the simulation's, and what was read back."""
    folder.mkdir(exist_ok=True)
    artifacts = target.backend.emit(model, plan, folder)
    compiled = target.backend.compile(artifacts, folder)
    assert compiled.error == ""
    simulation = SessionRun(next(a.path for a in artifacts if a.name == MODEL), Mode.EXACT, folder)
    (expected,), (emulated,) = list(simulation([sample])), list(target.backend.runner.run(compiled, [sample]))
    return sqnr_db(expected["y"], emulated["y"]), target.backend.read_back(compiled, plan)


def changed(read_back: ReadBack) -> list[str]:
    assert read_back.tensors
    return [row.detail for row in read_back.tensors if row.outcome in (Outcome.CHANGED, Outcome.NOT_FOUND)]


@pytest.mark.parametrize("size", [16, 32, 64])
@pytest.mark.parametrize("layer", ["MatMul", "Gemm transB", "Gemm transA", "Conv"])
def test_expanded_blocks_deploy_what_was_simulated(layer: str, size: int, htp: Target, tmp_path: Path) -> None:
    model, plan, sample = layer_plan(layer, htp, sized(W4A16_LPBQ, size), 192)
    agreement_db, read_back = deployed(model, plan, sample, htp, tmp_path)
    assert agreement_db >= SAME_DB
    assert changed(read_back) == []
    (row,) = [row for row in read_back.tensors if "every integer scale" in row.detail]
    assert row.tensor == "w"


@pytest.mark.parametrize("layer", ["MatMul", "Conv"])
def test_without_the_option_of_the_provider_the_layer_runs_in_float16_and_read_back_says_so(
    layer: str, htp: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence: if nothing converted the blocks, the tests above would fail."""
    model, plan, sample = layer_plan(layer, htp, W4A16_LPBQ, 192)
    monkeypatch.setattr(compiling, "block_options", lambda model: {})
    agreement_db, read_back = deployed(model, plan, sample, htp, tmp_path)
    assert agreement_db < SAME_DB
    details = changed(read_back)
    assert "planned int4 per expanded_block, found int4 per block" in details
    assert any("found float16: dequantized before" in detail for detail in details)


def test_scales_that_are_not_on_the_grid_of_integers_are_read_back_as_changed(htp: Target, tmp_path: Path) -> None:
    """What converting only the scales deploys: the provider rounds the scales, and 30 dB are lost."""
    model, plan, sample = layer_plan("MatMul", htp, W4A16_LPBQ, 192, rewritten=False)
    (edge,) = [edge for edge, choice in plan.edges.items() if choice.storage.dtype is DType.S4]
    blocks = weight_params(weight_of("MatMul", 192), replace(W4_BLOCK, block_size=32), 0)
    emitted = replace(plan, edges={**plan.edges, edge: replace(plan.edges[edge], storage=blocks)})
    artifacts = htp.backend.emit(model, plan, tmp_path)
    marked = ir.load(artifacts[0].path).metadata_props
    artifacts = htp.backend.emit(model, emitted, tmp_path)
    unmarked = ir.load(artifacts[0].path)
    unmarked.metadata_props.update(marked)
    ir.save(unmarked, artifacts[0].path)
    compiled = htp.backend.compile(artifacts, tmp_path)
    assert compiled.error == ""
    (expected,) = list(SessionRun(artifacts[0].path, Mode.EXACT, tmp_path)([sample]))
    (emulated,) = list(htp.backend.runner.run(compiled, [sample]))
    assert 20 < sqnr_db(expected["y"], emulated["y"]) < 45
    # The provider's own integers are those of our conversion: planned like that, all is as planned.
    converted = as_expanded(blocks)
    as_converted = replace(plan, edges={**plan.edges, edge: replace(plan.edges[edge], storage=converted)})
    assert changed(htp.backend.read_back(compiled, as_converted)) == []
    assert converted.int_scale is not None
    assert converted.channel_scale is not None
    other = np.array(converted.int_scale)
    other[0, 0] = 17 - other[0, 0]
    moved = replace(plan.edges[edge], storage=expand_blocks(other * converted.channel_scale, converted.encoding, 0))
    assert changed(htp.backend.read_back(compiled, replace(plan, edges={**plan.edges, edge: moved}))) == [
        "planned 288 integer scales, found others"
    ]
    scaled = replace(plan.edges[edge], storage=expand_blocks(converted.scale * np.float32(2), converted.encoding, 0))
    (detail,) = changed(htp.backend.read_back(compiled, replace(plan, edges={**plan.edges, edge: scaled})))
    assert detail.startswith("planned scale ")


def test_the_integers_of_another_layer_are_read_back_as_changed(htp: Target, tmp_path: Path) -> None:
    """Either layer planned with the integers of the other one, which are in the same file."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((2, 64 * 64)) * np.exp(random.normal(size=(2, 64 * 64)))
    w, v = (", ".join(f"{value:.6g}" for value in weight) for weight in weights)
    model = graph(
        f"g (float[8,64] x) => (float[8,64] y) <float[64,64] w = {{{w}}}, float[64,64] v = {{{v}}}> "
        "{ h = MatMul(x, w) a = Relu(h) y = MatMul(a, v) }"
    )
    plan = planned(model, htp, sized(W4A16_LPBQ, 16), data=noise(model))
    compiled = htp.backend.compile(htp.backend.emit(model, plan, tmp_path), tmp_path)
    assert compiled.error == ""
    assert changed(htp.backend.read_back(compiled, plan)) == []
    edges = [edge for edge, choice in plan.edges.items() if choice.storage.dtype is DType.S4]
    for edge, other in (edges, edges[::-1]):
        own, foreign = plan.edges[edge].storage, plan.edges[other].storage
        assert isinstance(own, QParams)
        assert isinstance(foreign, QParams)
        assert own.channel_scale is not None
        assert foreign.int_scale is not None
        swapped = expanded_qparams(own.encoding, own.channel_scale, foreign.int_scale, own.axis or 0)
        wrong = replace(plan, edges={**plan.edges, edge: replace(plan.edges[edge], storage=swapped)})
        assert changed(htp.backend.read_back(compiled, wrong)) == ["planned 256 integer scales, found others"]


def _agreement_db(model: ir.Model, plan: Plan, sample: dict[str, np.ndarray], target: Target, folder: Path) -> float:
    """The agreement of emulator and simulation; none where the emulator crashes, as it does for some of these."""
    try:
        return deployed(model, plan, sample, target, folder)[0]
    except UnfinishedError:
        return -np.inf


@pytest.mark.parametrize(("size", "channels"), [(8, 64), (24, 192), (48, 192), (16, 48), (16, 80)])
def test_blocks_that_the_table_excludes_are_computed_wrongly(
    size: int, channels: int, htp: Target, tmp_path: Path
) -> None:
    model, plan, sample = layer_plan("MatMul", htp, sized(W4A16_LPBQ, size), channels, rewritten=False)
    weight, expanded = weight_of("MatMul", channels), replace(W4A16_LPBQ.weight, block_size=size)
    (edge,) = [edge for edge in plan.edges if edge.index == 1]
    params = weight_params(weight, expanded, 0)
    forced = replace(plan, edges={**plan.edges, edge: replace(plan.edges[edge], storage=params)})
    assert _agreement_db(model, forced, sample, htp, tmp_path) < 20
    refused = htp.table.why_no_block_size(expanded)
    assert refused or plan.edges[edge].storage.dtype is DType.S8


@pytest.mark.parametrize("layer", ["MatMul", "Gemm transB", "Conv"])
def test_blocks_with_float_scales_run_in_float16_as_planned(layer: str, htp: Target, tmp_path: Path) -> None:
    model, plan, sample = layer_plan(layer, htp, W4A16_BQ, 192)
    agreement_db, read_back = deployed(model, plan, sample, htp, tmp_path)
    assert agreement_db >= 60
    assert changed(read_back) == []


@pytest.mark.parametrize("layer", ["MatMul", "Gemm transB", "Conv"])
def test_int4_per_channel_is_read_back_as_int4(layer: str, htp: Target, tmp_path: Path) -> None:
    model, plan, sample = layer_plan(layer, htp, W4A16, 192)
    agreement_db, read_back = deployed(model, plan, sample, htp, tmp_path)
    assert agreement_db >= 50
    assert changed(read_back) == []
    assert sum(choice.storage.dtype is DType.S4 for choice in plan.edges.values()) == 1


def test_stored_integers_are_the_rounded_weights(htp: Target) -> None:
    """The grid is chosen first, and the weights are rounded on it: no integer is kept from plain blocks."""
    _, plan, _ = layer_plan("MatMul", htp, W4A16_LPBQ, 192, rewritten=False)
    assert plan.stored == {}
    (params,) = [c.storage for c in plan.edges.values() if c.storage.dtype is DType.S4]
    assert isinstance(params, QParams)
    weight = weight_of("MatMul", 192)
    plain = weight_params(weight, replace(W4_BLOCK, block_size=32), 0)
    assert (quantize(weight, params) != quantize(weight, plain)).any()


def test_a_model_of_another_tool_is_converted_and_deployed(tmp_path: Path) -> None:
    path = blocks(tmp_path / "model.onnx")
    calibration = {"x": np.random.default_rng(1).standard_normal((4, 8, 64)).astype(np.float32)}
    result = dovetail.repair(
        path, target="qnn-htp:sm8550", output=tmp_path / "run", calibration=calibration, to_lpbq=True
    )
    assert result.verdicts["fidelity"].status is Status.PASS
    assert result.verdicts["numerics"].status is Status.PASS
    (row,) = [row for row in result.plan if row.dtype is DType.S4]
    assert row.granularity is Granularity.EXPANDED_BLOCK


@pytest.mark.parametrize("size", [48, 24])
def test_a_weight_that_htp_would_compute_wrongly_is_not_converted(size: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    first, second = (random.standard_normal(shape).astype(np.float32) * 0.1 for shape in ((64, 96), (96, 48)))
    sized = [replace(BLOCKS_OF_16, block_size=size) for size in (32, size)]
    path = layers(tmp_path / "model.onnx", [(first, sized[0], 0), (second, sized[1], 0)])
    calibration = {"x": random.standard_normal((4, 2, 8, 64)).astype(np.float32)}
    result = dovetail.repair(
        path, target="qnn-htp:sm8550", output=tmp_path / "run", calibration=calibration, to_lpbq=True
    )
    (record,) = [record for record in result.passes if record.name == "to_lpbq"]
    assert [site.where for site in record.changed] == ["w0_q"]
    (site,) = record.declined
    assert (site.where, f"its blocks are of {size}: HTP computes" in site.what) == ("w1_q", True)
    blocked, other = [row for row in result.plan if row.edge is not None and row.edge.index == 1]
    assert blocked.granularity is Granularity.EXPANDED_BLOCK
    assert (other.dtype, other.granularity) == (DType.S8, Granularity.AXIS)
    assert result.verdicts["fidelity"].status is Status.PASS
    assert result.verdicts["numerics"].status is Status.PASS


@pytest.mark.parametrize("symmetric", [False, True])
def test_int4_per_channel_of_another_tool_keeps_its_values(symmetric: bool, tmp_path: Path) -> None:
    """The compiler rejects asymmetric int4; int8 with the same scale has the same values."""
    encoding = replace(BLOCKS_OF_16, granularity=Granularity.AXIS, block_size=0, symmetric=symmetric)
    path = blocks(tmp_path / "model.onnx", encoding, axis=1)
    calibration = {"x": np.random.default_rng(1).standard_normal((4, 8, 64)).astype(np.float32)}
    result = dovetail.repair(path, target="qnn-htp:sm8550", output=tmp_path / "run", calibration=calibration)
    (row,) = [row for row in result.plan if row.edge is not None and row.edge.index == 1]
    assert row.dtype is (DType.S4 if symmetric else DType.S8)
    assert ("its values in the file are not symmetric" in row.detail) is not symmetric
    for name in ("repaired", "fidelity", "numerics"):
        assert result.verdicts[name].status is Status.PASS


@pytest.mark.parametrize("size", [8, 16])
def test_integer_scales_of_another_tool_stay_only_in_blocks_that_htp_has(size: int, tmp_path: Path) -> None:
    given = blocks(tmp_path / "model.onnx", replace(BLOCKS_OF_16, block_size=size))
    path = with_integer_scales(given, tmp_path / "lpbq.onnx")
    calibration = {"x": np.random.default_rng(1).standard_normal((4, 8, 64)).astype(np.float32)}
    result = dovetail.repair(path, target="qnn-htp:sm8550", output=tmp_path / "run", calibration=calibration)
    (row,) = [row for row in result.plan if row.edge is not None and row.edge.index == 1]
    is_kept = size == 16
    assert row.granularity is (Granularity.EXPANDED_BLOCK if is_kept else Granularity.AXIS)
    assert ("its blocks in the file are of 8: HTP computes blocks" in row.detail) is not is_kept
    for name in ("fidelity", "numerics"):
        assert result.verdicts[name].status is Status.PASS
