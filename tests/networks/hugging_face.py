"""Hugging Face vision models with random weights, of any depth and width, from both ONNX exporters; needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.networks.exports import exported
from tests.networks.torch_export import Outputs, export

EXPORTERS = ("dynamo-eager", "dynamo-sdpa", "torchscript-eager", "torchscript-sdpa")
# Channels per head for which both FP8 and INT8 attention kernels exist.
HEAD_SIZES = (32, 64)


@dataclass(frozen=True, slots=True)
class Size:
    """Depth and width of a model; ``real``: DETR with the library's default backbone and sizes, 6 + 6 layers."""

    layers: int = 2
    heads: int = 2
    head: int = 64
    real: bool = False

    @property
    def width(self) -> int:
        return self.heads * self.head


def _sizes(size: Size) -> dict[str, Any]:
    return {
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.width,
    }


def _vit(size: Size) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return Outputs(ViTForImageClassification(ViTConfig(**_sizes(size), image_size=112)), ["logits"])


def _deit(size: Size) -> nn.Module:
    from transformers import DeiTConfig, DeiTForImageClassification

    return Outputs(DeiTForImageClassification(DeiTConfig(**_sizes(size), image_size=112)), ["logits"])


def _dinov2(size: Size) -> nn.Module:
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(**_sizes(size), mlp_ratio=4, image_size=112, patch_size=16)
    return Outputs(Dinov2Model(config), ["last_hidden_state"])


def _siglip(size: Size) -> nn.Module:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(**_sizes(size), image_size=112, patch_size=16)
    return Outputs(SiglipVisionModel(config), ["last_hidden_state", "pooler_output"])


def _clip(size: Size) -> nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(**_sizes(size), image_size=112, patch_size=16)
    return Outputs(CLIPVisionModel(config), ["last_hidden_state"])


def _beit(size: Size) -> nn.Module:
    from transformers import BeitConfig, BeitForImageClassification

    config = BeitConfig(**_sizes(size), image_size=112, use_relative_position_bias=True)
    return Outputs(BeitForImageClassification(config), ["logits"])


def _yolos(size: Size) -> nn.Module:
    from transformers import YolosConfig, YolosForObjectDetection

    config = YolosConfig(**_sizes(size), image_size=[112, 112], num_detection_tokens=20)
    return Outputs(YolosForObjectDetection(config), ["logits", "pred_boxes"])


def _detr(size: Size) -> nn.Module:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    if size.real:  # ResNet-50, 8 heads of 32 channels, 100 queries
        backbone, sizes = ResNetConfig(out_features=["stage4"]), {}
    else:
        backbone = ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], out_features=["stage4"]
        )
        layer = {"layers": size.layers, "attention_heads": size.heads, "ffn_dim": 4 * size.width}
        sizes = {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in layer.items()}
        sizes |= {"d_model": size.width, "num_queries": 40, "num_labels": 8}
    config = DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, use_pretrained_backbone=False, backbone=None, **sizes
    )
    return Outputs(DetrForObjectDetection(config), ["logits", "pred_boxes"])


MODELS: dict[str, tuple[Callable[[Size], nn.Module], int]] = {  # constructor, image size
    "vit": (_vit, 112),
    "deit": (_deit, 112),
    "dinov2": (_dinov2, 112),
    "siglip": (_siglip, 112),
    "clip": (_clip, 112),
    "beit": (_beit, 112),
    "yolos": (_yolos, 112),
    "detr": (_detr, 224),
}


def image_size(name: str, size: Size) -> int:
    """The side of the input image in pixels; with 512, DETR's backbone gives 16 x 16 keys."""
    return 512 if name == "detr" and size.real else MODELS[name][1]


def hugging_face(name: str, exporter: str, size: Size | None = None, seed: int = 0) -> Path:
    """The file of one model, of the same weights whatever the exporter."""
    return exported(_export_model, name, exporter, size or Size(), seed)


def _export_model(path: Path, name: str, exporter: str, size: Size, seed: int) -> None:
    torch.manual_seed(seed)
    model = MODELS[name][0](size)
    inner: Any = model.model
    attention = exporter.rpartition("-")[2]
    if name == "detr":  # set_attn_implementation fails, because its backbone has no attention
        inner.config._attn_implementation = attention
    else:
        inner.set_attn_implementation(attention)
    side = image_size(name, size)
    export(model, (1, 3, side, side), path, dynamo=exporter.startswith("dynamo"))


def vision_model(name: str) -> Any:
    """A library's model as its users have it, with one layer and random weights, the same every time."""
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    config = getattr(transformers, f"{name}Config")(**sizes, image_size=96, patch_size=16)
    kind = "ForImageClassification" if name in ("ViT", "DeiT") else "Model"
    return getattr(transformers, f"{name}{kind}")(config)


class Twice(nn.Module):
    """One attention layer, deep in a module, that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"deep": nn.ModuleList([vision_model("ViT")])})

    def forward(self, x: Any) -> Any:
        vit = self.inner["deep"][0].vit
        hidden = vit.embeddings(x)
        layer = next(part for name, part in vit.named_modules() if type(part).__name__ == "ViTLayer")
        for _ in range(2):
            found = layer(hidden)
            hidden = found[0] if isinstance(found, tuple) else found
        return hidden
