"""Hugging Face vision models with random weights, small or of their real depth, from two exporters; needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.vit_export import export

EXPORTERS = ("dynamo-eager", "dynamo-sdpa", "torchscript-eager", "torchscript-sdpa")
# Hidden size per head: what both FP8 and INT8 have kernels for.
_HEAD = 64


class Outputs(nn.Module):
    """A model from one picture to some of its named outputs."""

    def __init__(self, model: nn.Module, fields: Sequence[str]) -> None:
        super().__init__()
        self.model, self.fields = model, tuple(fields)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = self.model(x)
        return tuple(getattr(found, field) for field in self.fields)


def _sizes(layers: int, heads: int) -> dict[str, Any]:
    width = heads * _HEAD
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }


def _vit(layers: int, heads: int) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return Outputs(ViTForImageClassification(ViTConfig(**_sizes(layers, heads), image_size=112)), ["logits"])


def _deit(layers: int, heads: int) -> nn.Module:
    from transformers import DeiTConfig, DeiTForImageClassification

    return Outputs(DeiTForImageClassification(DeiTConfig(**_sizes(layers, heads), image_size=112)), ["logits"])


def _dinov2(layers: int, heads: int) -> nn.Module:
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(**_sizes(layers, heads), mlp_ratio=4, image_size=112, patch_size=16)
    return Outputs(Dinov2Model(config), ["last_hidden_state"])


def _siglip(layers: int, heads: int) -> nn.Module:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(**_sizes(layers, heads), image_size=112, patch_size=16)
    return Outputs(SiglipVisionModel(config), ["last_hidden_state", "pooler_output"])


def _clip(layers: int, heads: int) -> nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(**_sizes(layers, heads), image_size=112, patch_size=16)
    return Outputs(CLIPVisionModel(config), ["last_hidden_state"])


def _beit(layers: int, heads: int) -> nn.Module:
    from transformers import BeitConfig, BeitForImageClassification

    config = BeitConfig(**_sizes(layers, heads), image_size=112, use_relative_position_bias=True)
    return Outputs(BeitForImageClassification(config), ["logits"])


def _yolos(layers: int, heads: int) -> nn.Module:
    from transformers import YolosConfig, YolosForObjectDetection

    config = YolosConfig(**_sizes(layers, heads), image_size=[112, 112], num_detection_tokens=20)
    return Outputs(YolosForObjectDetection(config), ["logits", "pred_boxes"])


def _detr(layers: int, heads: int) -> nn.Module:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    width = heads * _HEAD
    backbone = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    config = DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        use_pretrained_backbone=False,
        backbone=None,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        num_queries=40,
        num_labels=8,
    )
    return Outputs(DetrForObjectDetection(config), ["logits", "pred_boxes"])


MODELS: dict[str, tuple[Callable[[int, int], nn.Module], int]] = {  # how it is made, image size
    "vit": (_vit, 112),
    "deit": (_deit, 112),
    "dinov2": (_dinov2, 112),
    "siglip": (_siglip, 112),
    "clip": (_clip, 112),
    "beit": (_beit, 112),
    "yolos": (_yolos, 112),
    "detr": (_detr, 224),
}


def export_model(name: str, exporter: str, path: Path, layers: int = 2, heads: int = 2) -> Path:
    """One model, of the same weights whatever the exporter."""
    make, size = MODELS[name]
    torch.manual_seed(0)
    model = make(layers, heads)
    inner: Any = model.model
    inner.set_attn_implementation(exporter.rpartition("-")[2])
    return export(model, (1, 3, size, size), path, dynamo=exporter.startswith("dynamo"))
