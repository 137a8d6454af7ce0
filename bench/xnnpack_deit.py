"""DeiT-tiny with random weights in three spellings: timm's, and Hugging Face's with eager or SDPA attention.

And its matrix products alone: what is left of the time when everything else is taken out.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

SPELLINGS = ("timm", "hf-sdpa", "hf-eager")
_DIM, _HEADS, _PATCHES, _CLASSES = 192, 3, 196, 1000


def deit_tiny(spelling: str, layers: int) -> nn.Module:
    """The module, from a picture [1,3,224,224] to logits [1,1000]."""
    torch.manual_seed(0)
    return (_Timm(layers) if spelling == "timm" else _HuggingFace(layers, spelling.removeprefix("hf-"))).eval()


def products(layers: int) -> nn.Module:
    """The convolution, the linear layers and the products of attention, with no norm, softmax, GELU or addition."""
    torch.manual_seed(0)
    return _Products(layers).eval()


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
    """One linear for query, key and value, taken apart by ``unbind``; attention written out on four dimensions."""

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
    """Class token and positions are of size one, as patches are: at 0.02 an 8-bit step is larger than the token."""

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


class _Products(nn.Module):
    """Of the last block only keys and values: for the class token alone, the rest of it costs next to nothing."""

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
    return nn.Sequential(*(nn.Linear(one, other) for one, other in itertools.pairwise(widths)))
