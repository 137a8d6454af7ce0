"""Vision backbones: ViT, DeiT, DINOv2 in windows (as in RF-DETR), Swin and SegFormer.

Two layers or stages with random weights each, but every operator, rank and window that the real ones have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from tests.networks.exports import exported
from tests.networks.torch_export import Outputs, export_seeded, keep_sizes

# RF-DETR's backbone at its sizes: width, heads, image.
LARGE = (384, 6, 512)


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192, num_attention_heads=3, intermediate_size=768, num_hidden_layers=2, image_size=64, num_labels=10
    )
    return Outputs(ViTForImageClassification(config), ["logits"])


def deit() -> nn.Module:
    """With the distillation token and its own classifier."""
    from transformers import DeiTConfig, DeiTForImageClassificationWithTeacher

    config = DeiTConfig(
        hidden_size=192, num_attention_heads=3, intermediate_size=768, num_hidden_layers=2, image_size=64, num_labels=10
    )
    fields = ["logits", "cls_logits", "distillation_logits"]
    return Outputs(DeiTForImageClassificationWithTeacher(config), fields)


def dinov2(hidden_size: int = 64, heads: int = 2, image_size: int = 96, layers: int = 4) -> nn.Module:
    """RF-DETR's backbone: layers in 2 x 2 windows with a class token each, that in the middle global; layer scale."""
    from transformers import RfDetrDinov2Backbone, RfDetrDinov2Config

    config = RfDetrDinov2Config(
        hidden_size=hidden_size,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        image_size=image_size,
        patch_size=16,
        num_windows=2,
        out_indices=[layers // 2, layers],
    )
    return FeatureMaps(RfDetrDinov2Backbone(config))


def swin() -> nn.Module:
    """Two stages of a plain and a shifted layer: relative positions, masks, patch merging."""
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(image_size=56, embed_dim=64, depths=[2, 2], num_heads=[2, 4], window_size=7, num_labels=10)
    return Outputs(SwinForImageClassification(config), ["logits"])


def segformer() -> nn.Module:
    """The sizes of SegFormer-B0, with one layer in each stage."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(depths=[1, 1, 1, 1], decoder_hidden_size=64, num_labels=10)
    return Outputs(SegformerForSemanticSegmentation(config), ["logits"])


class FeatureMaps(nn.Module):
    """A backbone from one image tensor to its feature maps."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.model(x).feature_maps)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {  # how it is made, image size
    "vit": (vit, 64),
    "deit": (deit, 64),
    "dinov2": (dinov2, 96),
    "swin": (swin, 56),
    "segformer": (segformer, 64),
}


def backbone(name: str) -> Path:
    """The file of one of them."""
    return exported(_export_network, name)


def large_dinov2(layers: int) -> Path:
    """The file of some layers of RF-DETR's backbone at its real sizes; two of them are one in windows, one global."""
    return exported(_export_large, layers)


def _export_network(path: Path, name: str) -> None:
    make, size = NETWORKS[name]
    export_seeded(lambda: keep_sizes(make()), (1, 3, size, size), path)


def _export_large(path: Path, layers: int) -> None:
    export_seeded(lambda: keep_sizes(dinov2(*LARGE, layers=layers)), (1, 3, LARGE[-1], LARGE[-1]), path)
