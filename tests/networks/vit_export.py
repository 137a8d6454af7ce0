"""Export a Hugging Face ViT-tiny with random weights in three ways, and a windowed DINOv2-S block; needs torch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.exports import exported
from tests.networks.torch_export import Outputs, export

EXPORTERS = ("dynamo-eager", "dynamo-sdpa", "torchscript")
IMAGE = (1, 3, 224, 224)


class WindowedBlock(nn.Module):
    """Pre-norm attention and MLP with layer scale, 6 heads: [4,257,384] -> the same."""

    def __init__(self, dim: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.proj, self.fc1, self.fc2 = nn.Linear(dim, dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.scale1, self.scale2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        normed = self.norm1(x)
        qkv = [
            linear(normed).view(batch, tokens, self.heads, dim // self.heads).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        ]
        mixed = functional.scaled_dot_product_attention(*qkv).transpose(1, 2).reshape(batch, tokens, dim)
        x = x + self.scale1 * self.proj(mixed)
        return x + self.scale2 * self.fc2(functional.gelu(self.fc1(self.norm2(x))))


def vit(exporter: str, layers: int = 12) -> Path:
    """The file of the ViT-tiny: the same weights for every exporter."""
    return exported(_export_vit, exporter, layers)


def block(shape: tuple[int, ...]) -> Path:
    """The file of the windowed block, by dynamo with SDPA."""
    return exported(_export_block, shape)


def _export_vit(path: Path, exporter: str, layers: int) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=192, num_hidden_layers=layers, num_attention_heads=3, intermediate_size=768, num_labels=1000
    )
    config._attn_implementation = "sdpa" if exporter.endswith("sdpa") else "eager"
    model = Outputs(ViTForImageClassification(config), ["logits"])
    export(model, IMAGE, path, dynamo=exporter.startswith("dynamo"))


def _export_block(path: Path, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    export(WindowedBlock(), shape, path, dynamo=True)
