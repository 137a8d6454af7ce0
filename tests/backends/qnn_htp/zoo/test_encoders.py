"""Image encoders on the real HTP compiler: CLIP, SigLIP, MobileViT, SAM and the PP-OCRv6 text recognizer.

Each has two layers with random weights, but every operator, rank and window of the real network. The weights keep the
magnitude of the activations; otherwise the simulation of a deep random network would be meaningless.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx_ir as ir
import pytest
from torch import nn

import dovetail
from dovetail.encoding import DType
from dovetail.finding import Status
from dovetail.report.result import Result
from tests.backends.qnn_htp.zoo.fitting import (
    Outputs,
    assert_as_planned,
    export,
    fitted,
    keep_sizes,
    shared_export,
)
from tests.models import rendered_lines
from tests.ocr_wheel import ocr_model

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
pytest.importorskip("transformers", reason="needs the package transformers")

TARGET = "qnn-htp:sm8550"
PRECISIONS = ("w8a16", "w8a8")


def clip() -> nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=16
    )
    return Outputs(CLIPVisionModel(config), ("last_hidden_state", "pooler_output"))


def siglip() -> nn.Module:
    """With the attention pooling head."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=16
    )
    return Outputs(SiglipVisionModel(config), ("last_hidden_state", "pooler_output"))


def mobilevit() -> nn.Module:
    """The sizes of MobileViT-XXS, with one transformer layer per stage; test_encoder_parts.py tests a narrower layer,
    which is miscompiled."""
    from transformers import MobileViTConfig, MobileViTModel

    config = MobileViTConfig(
        image_size=64,
        hidden_sizes=[64, 80, 96],
        neck_hidden_sizes=[16, 16, 24, 48, 64, 80, 320],
        mlp_ratio=2.0,
        expand_ratio=2.0,
    )
    model = MobileViTModel(config)
    for stage in model.encoder.layer:
        if hasattr(stage, "transformer"):
            stage.transformer.layer = stage.transformer.layer[:1]
    return Outputs(model, ("last_hidden_state", "pooler_output"))


def sam() -> nn.Module:
    """A layer with windows that do not divide the image evenly, and a global one; both with relative positions."""
    from transformers import SamVisionConfig, SamVisionModel

    config = SamVisionConfig(
        hidden_size=32,
        output_channels=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=96,
        patch_size=16,
        window_size=4,
        global_attn_indexes=[1],
        mlp_ratio=2.0,
    )
    return Outputs(SamVisionModel(config), ("last_hidden_state",))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, bool]] = {  # factory, image size, exported by dynamo
    "clip": (clip, 32, False),
    "siglip": (siglip, 32, True),
    "mobilevit": (mobilevit, 64, False),
    "sam": (sam, 96, False),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a network; each is exported once."""
    return lambda name: shared_export(tmp_path_factory, name, partial(export_network, name))


def export_network(name: str, place: Path) -> Path:
    make, size, dynamo = NETWORKS[name]
    return export(keep_sizes(make()), (1, 3, size, size), place, dynamo=dynamo)


def normalized_operators(run: Path) -> set[str]:
    return {node.op_type for node in ir.load(run / "stages" / "normalized.onnx").graph}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_encoder_runs_as_planned(name: str, precision: str, exported: Callable[[str], Path], tmp_path: Path) -> None:
    size = NETWORKS[name][1]
    result = fitted(exported(name), (1, 3, size, size), tmp_path / "run", TARGET, precision, emulate=1)
    assert_as_planned(result)
    assert result.verdicts["numerics"].status is Status.PASS, result.verdicts["numerics"].reason
    assert "Einsum" not in normalized_operators(tmp_path / "run")
    assert {row.dtype for row in result.plan if row.edge is None} == {DType.U16 if precision == "w8a16" else DType.U8}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_text_recognizer_runs_as_planned(precision: str, tmp_path: Path) -> None:
    lines = rendered_lines.texts(4, seed=1)
    result: Result = dovetail.fit(
        ocr_model(rendered_lines.MODEL),
        target=TARGET,
        precision=precision,
        shape={"x": rendered_lines.SHAPE},
        calibration={"x": rendered_lines.clean(lines, seed=2)},
        operand_bits="8",
        output=tmp_path / "run",
        emulate=1,
    )
    assert_as_planned(result)
    assert result.verdicts["numerics"].status is Status.PASS, result.verdicts["numerics"].reason
