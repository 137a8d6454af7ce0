"""Export a Hugging Face ViT-tiny with random weights in three ways, and a windowed DINOv2-S block; needs torch."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

EXPORTERS = ("dynamo-eager", "dynamo-sdpa", "torchscript")
IMAGE = (1, 3, 224, 224)
_OPSET = 18


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


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


def export_vit(exporter: str, folder: Path, layers: int = 12) -> Path:
    """Export the ViT-tiny; the weights are the same for all exporters."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=192, num_hidden_layers=layers, num_attention_heads=3, intermediate_size=768, num_labels=1000
    )
    config._attn_implementation = "sdpa" if exporter.endswith("sdpa") else "eager"
    model = _Logits(ViTForImageClassification(config))
    return export(model, IMAGE, folder / f"vit_{exporter}.onnx", dynamo=exporter.startswith("dynamo"))


def export_block(folder: Path, shape: tuple[int, ...]) -> Path:
    """Export the windowed block with dynamo and SDPA."""
    torch.manual_seed(0)
    return export(WindowedBlock(), shape, folder / "block.onnx", dynamo=True)


def export(model: nn.Module, shape: tuple[int, ...], path: Path, *, dynamo: bool) -> Path:
    """Export a network with one input ``x`` to ONNX."""
    model = model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # exporters remove biases that are zero, as fresh ones are
                parameter.add_(0.02 * torch.randn(parameter.shape))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        example = (torch.randn(shape),)
        if not dynamo:
            torch.onnx.export(model, example, str(path), dynamo=False, opset_version=_OPSET, input_names=["x"])
            return path
        program = torch.onnx.export(model, example, dynamo=True, opset_version=_OPSET, input_names=["x"], verbose=False)
    if program is None:
        raise RuntimeError("the exporter returned no program")
    program.save(path)
    return path
