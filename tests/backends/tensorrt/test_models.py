"""Models as exporters write them, on the real builder: every attention is one kernel in the planned type.

One layer with random weights; `python -m bench.tensorrt models` has twelve layers, every model from two exporters in
both precisions, with heads of 32 and of 64 channels.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.backend import Outcome
from dovetail.finding import Status
from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.targets import open_target
from dovetail.targets.tensorrt.table import FP8, W8A8
from tests.backends.tensorrt.building import attention_note, built

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")
torch = pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("onnxscript", reason="needs the package onnxscript")
pytest.importorskip("transformers", reason="needs the package transformers")

from tests.networks.attention_exports import ATTENTION_OP, vit  # noqa: E402
from tests.networks.hugging_face import Size, Twice, hugging_face, vision_model  # noqa: E402

PRECISIONS = {"fp8": (FP8, "FP8 -> FP8"), "w8a8": (W8A8, "Int8 -> Int8")}


def assert_fused(path: Path, precision: str, blocks: int, folder: Path) -> None:
    """Normalize, plan, emit, build and read back: every attention block and every operand is as planned."""
    target, model = open_target("tensorrt:sm89"), normalize(read(path))[0]
    for rewrite in (*target.rewrites.graph, infer_shapes):
        rewrite(model)
    planned, types = PRECISIONS[precision]
    compiled, read_back, _ = built(model, target, planned, folder)
    assert compiled.findings == ()
    assert {row.outcome for row in read_back.tensors} == {Outcome.MATCHED}
    assert compiled.notes[1] == attention_note(blocks, f"{blocks} ({types})")


@pytest.mark.parametrize(
    ("name", "exporter", "precision", "head", "blocks"),
    [
        ("clip", "torchscript-eager", "w8a8", 64, 1),
        ("beit", "torchscript-eager", "fp8", 32, 1),
        ("yolos", "torchscript-sdpa", "w8a8", 32, 1),
        ("detr", "torchscript-eager", "w8a8", 32, 2),  # the decoder's first attention has constant inputs: it is folded
    ],
)
def test_every_attention_is_one_kernel(
    name: str, exporter: str, precision: str, head: int, blocks: int, tmp_path: Path
) -> None:
    assert_fused(hugging_face(name, exporter, Size(1, 2, head)), precision, blocks, tmp_path)


def test_the_attention_operator_is_decomposed(tmp_path: Path) -> None:
    """Opset 23 has an Attention operator, which the builder does not compute in 8 bit."""
    path = vit("huggingface", ATTENTION_OP, 1)
    assert "Attention" in {node.op_type for node in onnx.load(path).graph.node}
    assert_fused(path, "fp8", 1, tmp_path)


def digest(module: Any) -> str:
    """A hash of everything in a module: names, modes, types and bytes."""
    state = hashlib.sha256()
    for name, submodule in module.named_modules():
        state.update(f"{name} {type(submodule)} {submodule.training}".encode())
    for name, tensor in module.state_dict().items():
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes())
    return state.hexdigest()


@pytest.mark.parametrize(
    ("name", "attention", "blocks"),
    [("ViT", "eager", 1), ("DeiT", "sdpa", 1), ("Dinov2", "sdpa", 1), ("SiglipVision", "sdpa", 2)],
)
def test_from_torch(name: str, attention: str, blocks: int, tmp_path: Path) -> None:
    """A Hugging Face module in training mode becomes an engine; SigLIP has a second attention, which pools."""
    module = vision_model(name).train()
    module.set_attn_implementation(attention)
    before, path = digest(module), tmp_path / "model.onnx"
    onnx.save(dovetail.from_torch(module, torch.zeros(1, 3, 96, 96)), path)
    assert digest(module) == before
    assert_fused(path, "fp8", blocks, tmp_path)


def test_one_attention_module_that_is_called_twice_is_two_blocks(tmp_path: Path) -> None:
    """Attention is found in the graph, however deep its module is and however often it is called, by the pipeline."""
    module = Twice()
    before = digest(module)
    model = dovetail.from_torch(module, torch.zeros(1, 3, 96, 96))
    content = model.SerializeToString(deterministic=True)
    data = {"x": np.random.default_rng(0).standard_normal((2, 3, 96, 96)).astype(np.float32)}
    result = dovetail.fit(model, target="tensorrt", precision="fp8", calibration=data, output=tmp_path / "run")
    assert result.verdicts["fidelity"].status is Status.PASS
    assert attention_note(2, "2 (FP8 -> FP8)") in result.notes
    assert digest(module) == before
    assert model.SerializeToString(deterministic=True) == content
