"""Layer lists: from a device, written by hand or incomplete, and of matrix operations that are not quantized."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import dovetail
from dovetail.backend import CompileResult, DeviceReport, Outcome, TensorReadBack
from dovetail.finding import Severity, Status, Thresholds
from dovetail.op_support import FP16
from dovetail.storage import Plan
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.targets.tensorrt.compile import FLOAT16_LAYERS, LAYERS
from dovetail.targets.tensorrt.table import FP8
from dovetail.verify.verdicts import fidelity
from tests.backends.tensorrt import device_files
from tests.backends.tensorrt.building import attention_note
from tests.equality import model_from, normal
from tests.networks.attention_layer import layer
from tests.planning import noise, planned

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> tuple[CompileResult, Plan]:
    """The compiled model that the layer lists in ``layer_info/`` describe."""
    target, model, folder = open_target("tensorrt"), layer(), tmp_path_factory.mktemp("attention")
    plan = planned(model, target, FP8, data=noise(model))
    return target.backend.compile(target.backend.emit(model, plan, folder), folder), plan


def exported_layers(compiled: CompileResult) -> dict[str, Any]:
    """The builder's layer list as trtexec would export it."""
    return device_files.layer_info(next(a.path for a in compiled.artifacts if a.name == LAYERS))


def read_info(info: dict[str, Any], attention: tuple[CompileResult, Plan], folder: Path) -> DeviceReport:
    (folder / "layer_info.json").write_text(json.dumps(info))
    kit = open_target("tensorrt").backend.device
    assert kit is not None
    assert kit.read is not None
    return kit.read(folder, *attention)


def read_by_hand(name: str, attention: tuple[CompileResult, Plan], folder: Path, *without: str) -> DeviceReport:
    """Read a file of ``layer_info/``, written by hand in the format of NVIDIA's documentation of the engine inspector,
    which is also that of the files in tools/experimental/trt-engine-explorer of NVIDIA/TensorRT."""
    info = json.loads((Path(__file__).parent / "layer_info" / f"{name}.json").read_text())
    info["Layers"] = [{key: field for key, field in row.items() if key not in without} for row in info["Layers"]]
    return read_info(info, attention, folder)


def as_rows(report: DeviceReport) -> dict[str, tuple[Outcome, str]]:
    assert report.read_back is not None
    assert report.read_back.unparsed == ""
    rows = report.read_back.tensors
    return {row.tensor if row.edge is None else str(row.edge): (row.outcome, row.detail) for row in rows}


def test_a_fused_attention_in_a_file_written_by_hand(attention: tuple[CompileResult, Plan], tmp_path: Path) -> None:
    report = read_by_hand("fused", attention, tmp_path)
    projected, fused = "FP8 in gemm to_v+to_k+to_q_myl0_1", "FP8 in the attention block _gemm_mha_v2_myl0_2"
    details = {"to_q": projected, "to_k": projected, "to_v": projected, "scores": fused, "mix": fused}
    details["out"] = "FP8 in gemm out_myl0_3"
    expected = {f"{node}:{index}": (Outcome.MATCHED, text) for node, text in details.items() for index in (0, 1)}
    assert as_rows(report) == {**expected, "o": (Outcome.MATCHED, "one attention kernel, FP8 -> FP8")}
    assert report.read_back is not None
    names = {str(row.edge): (row.tensor, row.emitted) for row in report.read_back.tensors}
    assert (names["to_q:1"], names["scores:0"]) == (("wq", "wq__dq"), ("q", "q"))
    assert report.findings == ()
    assert report.notes[1] == attention_note(1, "1 (FP8 -> FP8)")


def test_an_unfused_attention_in_a_file_written_by_hand(attention: tuple[CompileResult, Plan], tmp_path: Path) -> None:
    report = read_by_hand("apart", attention, tmp_path)
    changed = {name: detail for name, (outcome, detail) in as_rows(report).items() if outcome is Outcome.CHANGED}
    matmul = "planned FP8 x FP8, found FP8 x Half: computed by gemm mix_myl0_6"
    assert changed == {
        "mix:0": matmul,
        "mix:1": matmul,
        "o": "planned one fused attention kernel, found separate kernels: the builder gives no reason",
    }
    assert [finding.severity for finding in report.findings] == [Severity.ERROR]
    assert fidelity(report.read_back, Thresholds()).status is Status.FAIL


def test_a_list_without_constants_leaves_weights_unchecked(
    attention: tuple[CompileResult, Plan], tmp_path: Path
) -> None:
    report = read_by_hand("fused", attention, tmp_path, "Constants", "Weights")
    rows = as_rows(report)
    assert {rows[f"{node}:0"][0] for node in ("to_q", "to_k", "to_v", "out")} == {Outcome.MATCHED}
    unknown = {name: detail for name, (outcome, detail) in rows.items() if outcome is not Outcome.MATCHED}
    assert list(unknown) == ["to_q:1", "to_k:1", "to_v:1", "out:1"]
    assert unknown["out:1"] == "the list does not give the type of the constants of gemm out_myl0_3"
    assert fidelity(report.read_back, Thresholds()).status is Status.NOT_CHECKED


def attentions(info: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in info["Layers"] if "_mha" in row["Name"]]


def no_inputs(info: dict[str, Any]) -> None:
    attentions(info)[0].pop("Inputs")


def no_attention(info: dict[str, Any]) -> None:
    info["Layers"] = [row for row in info["Layers"] if "_mha" not in row["Name"]]


def first_layers(info: dict[str, Any]) -> None:
    info["Layers"] = info["Layers"][:3]


def no_metadata(info: dict[str, Any]) -> None:
    for row in info["Layers"]:
        row.pop("Metadata")


def other_nodes(info: dict[str, Any]) -> None:
    for row in info["Layers"]:
        row["Metadata"] = "[ONNX Layer: elsewhere]"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (no_inputs, "a matrix operation without inputs or outputs: "),
        (no_attention, "no layer in the list computes this operator"),
        (first_layers, "no layer in the list computes this operator"),
        (no_metadata, "no layer of layer_info.json names its ONNX nodes in its Metadata"),
        (
            other_nodes,
            "layer_info.json is of another engine: none of its nodes is in this model, the first is 'elsewhere'",
        ),
    ],
)
def test_an_incomplete_layer_list_is_not_checked(
    change: Callable[[dict[str, Any]], None], reason: str, attention: tuple[CompileResult, Plan], tmp_path: Path
) -> None:
    info = exported_layers(attention[0])
    change(info)
    report = read_info(info, attention, tmp_path)
    verdict = fidelity(report.read_back, Thresholds())
    assert verdict.status is Status.NOT_CHECKED
    assert reason in verdict.reason
    assert Severity.ERROR not in {finding.severity for finding in report.findings}


def test_a_block_is_not_checked_without_the_float16_layer_list(
    attention: tuple[CompileResult, Plan], tmp_path: Path
) -> None:
    compiled, plan = attention
    without = replace(compiled, artifacts=tuple(a for a in compiled.artifacts if a.name != FLOAT16_LAYERS))
    info = exported_layers(compiled)
    attentions(info)[0].update(Name="__myl_Fc", LayerType="gemm")
    report = read_info(info, (without, plan), tmp_path)
    (finding,) = report.findings
    assert (finding.severity, "not known" in finding.message) == (Severity.WARNING, True)
    assert report.read_back is not None
    details = {row.detail for row in report.read_back.tensors if row.outcome is Outcome.NOT_FOUND}
    assert {detail.rpartition("; ")[2] for detail in details} == {"whether it is in float16 is not known"}
    built = open_target("tensorrt").backend.read_back(without, plan)
    no_list = "there is no layer list of the same graph in float16 to compare with"
    for read_back, reason in ((report.read_back, "not known"), (built, no_list)):
        verdict = fidelity(read_back, Thresholds())
        assert verdict.status is Status.NOT_CHECKED, verdict.reason
        assert verdict.reason.endswith(reason)


def test_matmuls_in_float16_are_looked_up_too(tmp_path: Path) -> None:
    """A model without attention and without Q/DQ pairs; the second MatMul has a single row."""
    text = """g (float[1,64,64] x) => (float[1,8] y) <int64 first = {0}>
    { [wide] a = MatMul(x, w) r = Relu(a) s = Softmax<axis = -1>(r) t = Gather<axis = 1>(s, first)
      [row] y = MatMul(t, v) }"""
    target, model = open_target("tensorrt"), model_from(text, w=normal(64, 64), v=normal(64, 8))
    plan = planned(model, target, FP16, data=noise(model))
    compiled = target.backend.compile(target.backend.emit(model, plan, tmp_path), tmp_path)
    rows = {row.tensor: (row.outcome, row.detail.split(" ")[0].strip(",")) for row in read_all(target, compiled, plan)}
    assert rows == {"a": (Outcome.MATCHED, "Half"), "y": (Outcome.MATCHED, "Half")}
    layers = tmp_path / "layers.txt"
    layers.write_text(layers.read_text().replace("Datatype: Half", "Datatype: Float"))
    assert {row.outcome for row in read_all(target, compiled, plan)} == {Outcome.CHANGED}
    assert fidelity(target.backend.read_back(compiled, plan), Thresholds()).status is Status.FAIL
    layers.write_text(re.sub(r"Metadata: .*", "Metadata: ", layers.read_text()))
    assert {row.outcome for row in read_all(target, compiled, plan)} == {Outcome.NOT_FOUND}


def test_transposed_convolutions_in_float16_are_found(tmp_path: Path) -> None:
    # 31 and 17 channels: the builder pads them in layers of their own, which have the name of the node too
    text = """g (float[1,31,9,8] x) => (float[1,17,9,8] y)
    { t = ConvTranspose<pads = [1, 1, 1, 1]>(x, w)  y = LeakyRelu(t) }"""
    target, model = open_target("tensorrt"), model_from(text, w=normal(31, 17, 3, 3))
    plan = planned(model, target, FP8, data=noise(model))
    compiled = target.backend.compile(target.backend.emit(model, plan, tmp_path), tmp_path)
    (row,) = read_all(target, compiled, plan)
    assert (row.outcome, row.detail.split()[:3]) == (Outcome.MATCHED, ["Half", "in", "deconv"])
    layers = tmp_path / "layers.txt"
    layers.write_text(layers.read_text().replace("Datatype: Half", "Datatype: Int8"))
    assert [row.outcome for row in read_all(target, compiled, plan)] == [Outcome.CHANGED]


def test_a_weight_in_columns_is_found_in_generated_layers(tmp_path: Path) -> None:
    """Squeeze-and-excite: the second convolution has 2 channels, and is part of the layer of the Mul."""
    text = """g (float[1,6,14,8] x) => (float[1,6,14,8] y)
    { p = GlobalAveragePool(x)  s = Conv(p, w)  r = Relu(s)  e = Conv(r, v, b)  g = Sigmoid(e)  y = Mul(x, g) }"""
    weights = {"w": normal(2, 6, 1, 1), "v": normal(6, 2, 1, 1), "b": normal(6)}
    target, model = open_target("tensorrt"), model_from(text, **weights)
    plan = planned(model, target, FP8, data=noise(model))
    compiled = target.backend.compile(target.backend.emit(model, plan, tmp_path), tmp_path)
    rows = {row.tensor: row for row in read_all(target, compiled, plan)}
    assert {row.outcome for row in rows.values()} == {Outcome.MATCHED}
    assert rows["e"].detail.startswith("Half, element by element in ")
    layers = tmp_path / "layers.txt"
    one_column = re.compile(r"(Dimensions: \[1,6,1\][^}]*Datatype: )Half")
    layers.write_text(one_column.sub(r"\1Float", layers.read_text(), count=2))  # of the two columns and the bias
    outcomes = {row.tensor: row.outcome for row in read_all(target, compiled, plan)}
    assert outcomes["e"] is Outcome.NOT_FOUND


def test_a_graph_without_matrix_operations_is_float_in_all_layers(tmp_path: Path) -> None:
    text = "g (float[1,24,13,20] x) => (float[1,24,13,20] y) { p = Softplus(x)  y = Mul(p, x) }"
    target, model = open_target("tensorrt"), model_from(text)
    plan = planned(model, target, FP8, data=noise(model))
    compiled = target.backend.compile(target.backend.emit(model, plan, tmp_path), tmp_path)
    assert [(row.tensor, row.outcome) for row in read_all(target, compiled, plan)] == [("y", Outcome.MATCHED)]
    layers = tmp_path / "layers.txt"
    layers.write_text(layers.read_text().replace("Datatype: Float", "Datatype: FP8", 1))
    assert [row.outcome for row in read_all(target, compiled, plan)] == [Outcome.CHANGED]


def read_all(target: Target, compiled: CompileResult, plan: Plan) -> tuple[TensorReadBack, ...]:
    read_back = target.backend.read_back(compiled, plan)
    assert read_back.unparsed == ""
    return read_back.tensors


def test_values_beyond_float16_fail_without_a_gpu(tmp_path: Path) -> None:
    """A square above 65504 is infinite in float16, and the LayerNorm after it gives NaN."""
    text = """g (float[1,4,32] x) => (float[1,4,32] y)
    { a = MatMul(x, w) b = MatMul(a, w) r = Mul(b, b) y = LayerNormalization<axis = -1>(r, ones) }"""
    data = {"x": np.random.default_rng(0).standard_normal((2, 1, 4, 32)).astype(np.float32)}
    statuses = {}
    for size in (1, 10):
        model = tmp_path / f"{size}.onnx"
        ir.save(model_from(text, w=size * normal(32, 32), ones=np.ones(32, np.float32)), model)
        result = dovetail.fit(model, target="tensorrt", precision="fp16", calibration=data, output=tmp_path / str(size))
        statuses[size] = result.verdicts["numerics"].status
    assert statuses == {1: Status.NOT_CHECKED, 10: Status.FAIL}
    reason = "the simulation's output 'y' contains NaN or infinity, float's does not"
    assert result.verdicts["numerics"].reason == reason
