"""DeiT-tiny with random weights in three implementations: timm's, and Hugging Face's with eager or SDPA attention.

Also its matrix operations (Conv, linear layers, attention MatMuls) alone, to show how much time they take at least.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

IMPLEMENTATIONS = ("timm", "hf-sdpa", "hf-eager")
_DIM, _HEADS, _PATCHES, _CLASSES = 192, 3, 196, 1000


def deit_tiny(implementation: str, layers: int) -> nn.Module:
    """Make the module: image [1,3,224,224] -> logits [1,1000]."""
    torch.manual_seed(0)
    if implementation == "timm":
        return _Timm(layers).eval()
    return _HuggingFace(layers, implementation.removeprefix("hf-")).eval()


def matrix_operations(layers: int) -> nn.Module:
    """Make a module with only the Conv, linear layers and attention MatMuls: no norm, Softmax, GELU or residual Add."""
    torch.manual_seed(0)
    return _MatrixOperations(layers).eval()


class _HuggingFace(nn.Module):
    def __init__(self, layers: int, attention: str) -> None:
        from transformers import DeiTConfig, DeiTForImageClassification

        super().__init__()
        config = DeiTConfig(
            hidden_size=_DIM,
            num_hidden_layers=layers,
            num_attention_heads=_HEADS,
            intermediate_size=4 * _DIM,
            num_labels=_CLASSES,
        )
        config._attn_implementation = attention
        self.model = DeiTForImageClassification(config)

    def forward(self, pixel_values: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values).logits
        return logits


class _Block(nn.Module):
    """A pre-norm block with one linear layer for query, key and value, split by ``unbind``; attention on rank 4."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_DIM, eps=1e-6), nn.LayerNorm(_DIM, eps=1e-6)
        self.qkv, self.proj = nn.Linear(_DIM, 3 * _DIM), nn.Linear(_DIM, _DIM)
        self.fc1, self.fc2 = nn.Linear(_DIM, 4 * _DIM), nn.Linear(4 * _DIM, _DIM)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, _HEADS, dim // _HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = (q * (dim // _HEADS) ** -0.5 @ k.transpose(-2, -1)).softmax(dim=-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, dim))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class _Timm(nn.Module):
    """DeiT as timm implements it, with class token and positions of standard deviation 1, about that of the patches.

    At the usual 0.02, the class token would be smaller than one 8-bit quantization step.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, _DIM, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, _DIM))
        self.positions = nn.Parameter(torch.randn(1, _PATCHES + 1, _DIM))
        self.blocks = nn.Sequential(*(_Block() for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(_DIM, eps=1e-6), nn.Linear(_DIM, _CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(image.shape[0], -1, -1), patches), dim=1) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return logits


class _MatrixOperations(nn.Module):
    """The matrix operations of a DeiT; of the last block only keys and values, as the rest is needed for one row."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, _DIM, 16, 16), nn.Parameter(torch.randn(1, 1, _DIM))
        self.blocks = nn.ModuleList(_linears(4, feed_forward=True) for _ in range(layers - 1))
        self.last = _linears(2, feed_forward=False)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        x, mixed = torch.cat((self.token, patches), dim=1), []
        for block in self.blocks:
            x = block(x)
            heads = x.reshape(_PATCHES + 1, _HEADS, _DIM // _HEADS).permute(1, 0, 2)
            mixed.append(torch.bmm(torch.bmm(heads, heads.permute(0, 2, 1)), heads))
        return (self.last(x), *mixed)


def _linears(square: int, *, feed_forward: bool) -> nn.Sequential:
    widths = [_DIM] * (square + 1) + [4 * _DIM, _DIM] * feed_forward
    return nn.Sequential(*(nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(widths)))
