"""Files of networks whose attention is written in different ways, by different exporters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tests.networks import attention_styles
from tests.networks.exports import exported
from tests.networks.torch_export import OPSET, Outputs, export

EXPORTERS = ("dynamo-eager", "dynamo-sdpa", "torchscript-eager", "torchscript-sdpa")
ATTENTION_OP = "dynamo-attention-op"
STYLES = ("timm", "huggingface")
ATTENTION_OPSET = 23
IMAGE = (1, 3, 224, 224)


def vit(style: str, exporter: str, depth: int = 2) -> Path:
    """A ViT-tiny: the same weights for every exporter of a style."""
    return exported(_export_vit, style, exporter, depth)


def fused_block(take: str, exporter: str) -> Path:
    """One block with a fused qkv projection whose parts are taken by ``unbind``, ``index`` or ``chunk``."""
    return exported(_export_fused_block, take, exporter)


def masked_window(exporter: str) -> Path:
    """One block over a window of 16 tokens with the constant mask of a shifted window."""
    return exported(_export_masked_window, exporter)


def cross_attention(exporter: str) -> Path:
    """Ten queries over 49 tokens."""
    return exported(_export_cross_attention, exporter)


def _export_vit(path: Path, style: str, exporter: str, depth: int) -> None:
    sdpa = not exporter.endswith("eager")

    def build() -> nn.Module:
        if style == "timm":
            return attention_styles.TimmVit(depth, sdpa=sdpa)
        return Outputs(attention_styles.huggingface_vit(depth, "sdpa" if sdpa else "eager"), ["logits"])

    _export(path, build, IMAGE, exporter)


def _export_fused_block(path: Path, take: str, exporter: str) -> None:
    sdpa = not exporter.endswith("eager")
    attention = attention_styles.FusedAttention
    _export(path, lambda: attention_styles.Block(attention(sdpa=sdpa, take=take)), (1, 50, 192), exporter)


def _export_masked_window(path: Path, exporter: str) -> None:
    sdpa = not exporter.endswith("eager")
    mask = attention_styles.shifted_window_mask(16)
    attention = attention_styles.FusedAttention
    _export(path, lambda: attention_styles.Block(attention(sdpa=sdpa, mask=mask)), (4, 16, 192), exporter)


def _export_cross_attention(path: Path, exporter: str) -> None:
    sdpa = not exporter.endswith("eager")
    _export(path, lambda: attention_styles.CrossAttention(sdpa=sdpa), (1, 49, 192), exporter)


def _export(path: Path, build: Callable[[], nn.Module], shape: tuple[int, ...], exporter: str) -> None:
    torch.manual_seed(0)
    opset = ATTENTION_OPSET if exporter == ATTENTION_OP else OPSET
    export(build(), shape, path, dynamo=exporter.startswith("dynamo"), opset=opset)
