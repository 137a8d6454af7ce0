"""Exports of the networks, each made once per test session."""

from __future__ import annotations

import functools
import io
import logging
import warnings
from collections.abc import Callable

import onnx
import torch
from torch import Tensor, nn

from tests.exporters import networks

EXPORTERS = ("dynamo-eager", "dynamo-sdpa", "torchscript-eager", "torchscript-sdpa")
ATTENTION_OP = "dynamo-attention-op"
STYLES = ("timm", "huggingface")
OPSET = 18
ATTENTION_OPSET = 23


@functools.cache
def vit(style: str, exporter: str, depth: int = 2) -> bytes:
    """A serialized ViT-tiny: the same weights for every exporter of a style."""
    sdpa = not exporter.endswith("eager")
    if style == "timm":
        return _export(lambda: networks.TimmVit(depth, sdpa=sdpa), torch.zeros(1, 3, 224, 224), exporter)
    implementation = "sdpa" if sdpa else "eager"
    return _export(
        lambda: _Logits(networks.huggingface_vit(depth, implementation)), torch.zeros(1, 3, 224, 224), exporter
    )


@functools.cache
def fused_block(take: str, exporter: str) -> bytes:
    """One block with a fused QKV projection that is split by ``unbind``, ``index`` or ``chunk``."""
    sdpa = not exporter.endswith("eager")
    return _export(
        lambda: networks.Block(networks.FusedAttention(sdpa=sdpa, take=take)), torch.zeros(1, 50, 192), exporter
    )


@functools.cache
def masked_window(exporter: str) -> bytes:
    """One block over a window of 16 tokens with the constant mask of a shifted window."""
    sdpa = not exporter.endswith("eager")
    mask = networks.shifted_window_mask(16)
    return _export(
        lambda: networks.Block(networks.FusedAttention(sdpa=sdpa, mask=mask)), torch.zeros(4, 16, 192), exporter
    )


@functools.cache
def cross_attention(exporter: str) -> bytes:
    """Ten queries over 49 tokens."""
    sdpa = not exporter.endswith("eager")
    return _export(lambda: networks.CrossAttention(sdpa=sdpa), torch.zeros(1, 49, 192), exporter)


class _Logits(nn.Module):
    """The logits of a transformers classifier, as a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images).logits
        return logits


def _export(build: Callable[[], nn.Module], example: Tensor, exporter: str) -> bytes:
    torch.manual_seed(0)
    model = build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # fresh biases are zero: exporters and folding would remove them
                parameter.add_(0.02 * torch.randn(parameter.shape))
    opset = ATTENTION_OPSET if exporter == ATTENTION_OP else OPSET
    buffer = io.BytesIO()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if exporter.startswith("torchscript"):
            torch.onnx.export(model, (example,), buffer, dynamo=False, opset_version=opset, input_names=["x"])
            return buffer.getvalue()
        program = torch.onnx.export(
            model, (example,), dynamo=True, opset_version=opset, input_names=["x"], verbose=False
        )
    if program is None:
        raise RuntimeError("the exporter returned no program")
    proto: onnx.ModelProto = program.model_proto
    return proto.SerializeToString()
