"""The float16 engine that a fitted graph is compared with: one and the same for both 8-bit types."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from dovetail import zoo
from dovetail.model.edit import constant_of
from dovetail.model.read import read
from dovetail.model.write import write
from dovetail.op_support import Precision
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.targets import open_target
from dovetail.targets.child import run_child
from dovetail.targets.tensorrt.compile import float16_twin
from dovetail.targets.tensorrt.table import FP8, W8A8
from dovetail.targets.tensorrt.unquantized import UnquantizedModel, unquantized
from tests.networks.attention_layer import layer
from tests.planning import noise, planned

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")


def shipped(name: str) -> ir.Model:
    model = normalize(read(zoo.load(name).model_path))[0]
    for rewrite in (*open_target("tensorrt:sm89").rewrites.graph, infer_shapes):
        rewrite(model)
    return model


def emitted(model: ir.Model, precision: Precision, folder: Path, **options: str) -> UnquantizedModel:
    target = open_target("tensorrt:sm89", options)
    folder.mkdir()
    artifacts = target.backend.emit(model, planned(model, target, precision, data=noise(model)), folder)
    return unquantized(ir.load(artifacts[0].path))


def content(model: ir.Model, folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in write(model, folder / "float16.onnx")]


@pytest.mark.parametrize("options", [{}, {"compute": "fp32"}], ids=["half", "float"])
@pytest.mark.parametrize("name", ["layer", "vit_digits", "detector_scenes"])
def test_both_8_bit_types_have_the_same_twin(name: str, options: dict[str, str], tmp_path: Path) -> None:
    model = layer(masked=True) if name == "layer" else shipped(name)
    fp8, int8 = (emitted(model, each, tmp_path / each.name, **options) for each in (FP8, W8A8))
    assert content(fp8.model, tmp_path) != content(int8.model, tmp_path)  # weights are rounded otherwise
    assert content(float16_twin(fp8), tmp_path) == content(float16_twin(int8), tmp_path)


def test_no_two_weights_of_a_twin_are_the_same(tmp_path: Path) -> None:
    plain = emitted(layer(), FP8, tmp_path / "fp8")
    before = content(plain.model, tmp_path)
    products = [node for node in float16_twin(plain).graph if node.op_type == "MatMul"]
    weights = [array.tobytes() for node in products if (array := constant_of(node.inputs[1])) is not None]
    assert len(set(weights)) == len(weights) == 4
    assert content(plain.model, tmp_path) == before


def test_its_layers_are_those_of_the_graph_with_its_own_weights(tmp_path: Path) -> None:
    plain = emitted(shipped("vit_digits"), FP8, tmp_path / "fp8")
    lists = []
    for name, model in (("own", plain.model), ("twin", float16_twin(plain))):
        path, layers = write(model, tmp_path / f"{name}.onnx")[0], tmp_path / f"{name}.txt"
        arguments = {"model": str(path), "engine": str(tmp_path / "engine"), "layers": str(layers), "sm": 89}
        assert run_child("dovetail.targets.tensorrt.build:build_in_child", arguments).error == ""
        lists.append(layers.read_text())
    assert lists[0] == lists[1] != ""
