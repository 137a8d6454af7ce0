"""Layer lists: of a device, written by hand or spoilt, and of products that are not in 8 bit."""

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
from tests.equality import model_from, normal
from tests.networks.attention_layer import layer
from tests.planning import noise, planned

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> tuple[CompileResult, Plan]:
    """What the layer lists in ``layer_info/`` are of."""
    target, model, folder = open_target("tensorrt"), layer(), tmp_path_factory.mktemp("attention")
    plan = planned(model, target, FP8, data=noise(model))
    return target.backend.compile(target.backend.emit(model, plan, folder), folder), plan


def listed(compiled: CompileResult) -> dict[str, Any]:
    """The builder's list as the SDK's tool would export it."""
    return device_files.layer_info(next(a.path for a in compiled.artifacts if a.name == LAYERS))


def read_info(info: dict[str, Any], attention: tuple[CompileResult, Plan], folder: Path) -> DeviceReport:
    (folder / "layer_info.json").write_text(json.dumps(info))
    kit = open_target("tensorrt").backend.device
    assert kit is not None
    assert kit.read is not None
    return kit.read(folder, *attention)


def read_by_hand(name: str, attention: tuple[CompileResult, Plan], folder: Path, *without: str) -> DeviceReport:
    """A file of ``layer_info/``, written by hand in the form of NVIDIA's documentation of the engine inspector, which
    also is that of the files in tools/experimental/trt-engine-explorer of NVIDIA/TensorRT."""
    info = json.loads((Path(__file__).parent / "layer_info" / f"{name}.json").read_text())
    info["Layers"] = [{key: said for key, said in one.items() if key not in without} for one in info["Layers"]]
    return read_info(info, attention, folder)


def as_rows(said: DeviceReport) -> dict[str, tuple[Outcome, str]]:
    assert said.read_back is not None
    assert said.read_back.unparsed == ""
    rows = said.read_back.tensors
    return {one.tensor if one.edge is None else str(one.edge): (one.outcome, one.detail) for one in rows}


def test_a_fused_attention_in_a_file_written_by_hand(attention: tuple[CompileResult, Plan], tmp_path: Path) -> None:
    said = read_by_hand("fused", attention, tmp_path)
    projected, fused = "FP8 in gemm to_v+to_k+to_q_myl0_1", "FP8 in the attention _gemm_mha_v2_myl0_2"
    details = {"to_q": projected, "to_k": projected, "to_v": projected, "scores": fused, "mix": fused}
    details["out"] = "FP8 in gemm out_myl0_3"
    expected = {f"{node}:{index}": (Outcome.MATCHED, text) for node, text in details.items() for index in (0, 1)}
    assert as_rows(said) == {**expected, "o": (Outcome.MATCHED, "one attention kernel, FP8 -> FP8")}
    assert said.read_back is not None
    named = {str(one.edge): (one.tensor, one.emitted) for one in said.read_back.tensors}
    assert (named["to_q:1"], named["scores:0"]) == (("wq", "wq__dq"), ("q", "q"))
    assert said.findings == ()
    assert said.notes[1] == "1 attention blocks: as one kernel as planned 1 FP8 -> FP8; in float16 1"


def test_an_attention_in_parts_in_a_file_written_by_hand(attention: tuple[CompileResult, Plan], tmp_path: Path) -> None:
    said = read_by_hand("apart", attention, tmp_path)
    bad = {name: detail for name, (outcome, detail) in as_rows(said).items() if outcome is Outcome.CHANGED}
    product = "gemm mix_myl0_6 computes FP8 x Half"
    assert bad == {
        "mix:0": product,
        "mix:1": product,
        "o": "attention is not one kernel: the builder does not say why",
    }
    assert [finding.severity for finding in said.findings] == [Severity.ERROR]
    assert fidelity(said.read_back, Thresholds()).status is Status.FAIL


def test_a_list_without_constants_says_nothing_of_weights(
    attention: tuple[CompileResult, Plan], tmp_path: Path
) -> None:
    said = read_by_hand("fused", attention, tmp_path, "Constants", "Weights")
    rows = as_rows(said)
    assert {rows[f"{node}:0"][0] for node in ("to_q", "to_k", "to_v", "out")} == {Outcome.MATCHED}
    unknown = {name: detail for name, (outcome, detail) in rows.items() if outcome is not Outcome.MATCHED}
    assert list(unknown) == ["to_q:1", "to_k:1", "to_v:1", "out:1"]
    assert unknown["out:1"] == "the list does not say in which type gemm out_myl0_3 has its constants"
    assert fidelity(said.read_back, Thresholds()).status is Status.NOT_CHECKED


def attentions(info: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in info["Layers"] if "_mha" in one["Name"]]


def no_inputs(info: dict[str, Any]) -> None:
    attentions(info)[0].pop("Inputs")


def no_attention(info: dict[str, Any]) -> None:
    info["Layers"] = [one for one in info["Layers"] if "_mha" not in one["Name"]]


def first_layers(info: dict[str, Any]) -> None:
    info["Layers"] = info["Layers"][:3]


def no_metadata(info: dict[str, Any]) -> None:
    for one in info["Layers"]:
        one.pop("Metadata")


def other_nodes(info: dict[str, Any]) -> None:
    for one in info["Layers"]:
        one["Metadata"] = "[ONNX Layer: elsewhere]"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (no_inputs, "a product without inputs or outputs: "),
        (no_attention, "no layer does the work of this operator"),
        (first_layers, "no layer does the work of this operator"),
        (no_metadata, "no layer of layer_info.json says in its Metadata which nodes it does the work of"),
        (other_nodes, "layer_info.json is of another engine: 'elsewhere' is no node of this model, nor any other"),
    ],
)
def test_layers_that_do_not_say_enough_are_not_checked(
    spoil: Callable[[dict[str, Any]], None], said: str, attention: tuple[CompileResult, Plan], tmp_path: Path
) -> None:
    info = listed(attention[0])
    spoil(info)
    read = read_info(info, attention, tmp_path)
    verdict = fidelity(read.read_back, Thresholds())
    assert verdict.status is Status.NOT_CHECKED
    assert said in verdict.reason
    assert Severity.ERROR not in {finding.severity for finding in read.findings}


def test_a_block_is_not_judged_without_the_list_of_float16(
    attention: tuple[CompileResult, Plan], tmp_path: Path
) -> None:
    compiled, plan = attention
    alone = replace(compiled, artifacts=tuple(a for a in compiled.artifacts if a.name != FLOAT16_LAYERS))
    info = listed(compiled)
    attentions(info)[0].update(Name="__myl_Fc", LayerType="gemm")
    read = read_info(info, (alone, plan), tmp_path)
    (finding,) = read.findings
    assert (finding.severity, "not known" in finding.message) == (Severity.WARNING, True)
    assert read.read_back is not None
    lost = {one.detail for one in read.read_back.tensors if one.outcome is Outcome.NOT_FOUND}
    assert {detail.rpartition("; ")[2] for detail in lost} == {"whether it is in float16 is not known"}
    built = open_target("tensorrt").backend.read_back(alone, plan)
    said = "there is no layer list of the same graph in float16 to compare with"
    for read_back, words in ((read.read_back, "not known"), (built, said)):
        verdict = fidelity(read_back, Thresholds())
        assert verdict.status is Status.NOT_CHECKED, verdict.reason
        assert verdict.reason.endswith(words)


def test_products_in_float16_are_looked_up_too(tmp_path: Path) -> None:
    """A model without attention, of which nothing is in 8 bit; the second product is a single row."""
    text = """g (float[1,64,64] x) => (float[1,8] y) <int64 first = {0}>
    { [wide] a = MatMul(x, w) r = Relu(a) s = Softmax<axis = -1>(r) t = Gather<axis = 1>(s, first)
      [row] y = MatMul(t, v) }"""
    target, model = open_target("tensorrt"), model_from(text, w=normal(64, 64), v=normal(64, 8))
    plan = planned(model, target, FP16, data=noise(model))
    compiled = target.backend.compile(target.backend.emit(model, plan, tmp_path), tmp_path)
    found = {one.tensor: (one.outcome, one.detail.split(" ")[0].strip(",")) for one in read_all(target, compiled, plan)}
    assert found == {"a": (Outcome.MATCHED, "Half"), "y": (Outcome.MATCHED, "Half")}
    listed = tmp_path / "layers.txt"
    listed.write_text(listed.read_text().replace("Datatype: Half", "Datatype: Float"))
    assert {one.outcome for one in read_all(target, compiled, plan)} == {Outcome.CHANGED}
    assert fidelity(target.backend.read_back(compiled, plan), Thresholds()).status is Status.FAIL
    listed.write_text(re.sub(r"Metadata: .*", "Metadata: ", listed.read_text()))
    assert {one.outcome for one in read_all(target, compiled, plan)} == {Outcome.NOT_FOUND}


def read_all(target: Target, compiled: CompileResult, plan: Plan) -> tuple[TensorReadBack, ...]:
    read_back = target.backend.read_back(compiled, plan)
    assert read_back.unparsed == ""
    return read_back.tensors


def test_numbers_that_float16_cannot_hold_fail_without_a_gpu(tmp_path: Path) -> None:
    """A square above 65504 is infinite in float16, and the norm behind it NaN."""
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
    assert result.verdicts["numerics"].reason == "the simulation's output 'y' holds NaN or infinity, float's does not"
