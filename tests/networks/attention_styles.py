"""Small networks whose attention is written in the ways that real model libraries write it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM = 192
HEADS = 3
HEAD_DIM = DIM // HEADS


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, sdpa: bool) -> Tensor:
    """Scaled dot-product attention on [B,H,T,D], written out or by PyTorch's own function."""
    if sdpa:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    return (scores if mask is None else scores + mask).softmax(dim=-1) @ value


class FusedAttention(nn.Module):
    """Self-attention with one fused QKV projection, as in timm: [B,T,C] -> [B,T,C]."""

    def __init__(self, *, sdpa: bool, take: str = "unbind", mask: Tensor | None = None) -> None:
        super().__init__()
        self.sdpa = sdpa
        self.take = take
        self.register_buffer("mask", mask)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        if self.take == "chunk":
            query, key, value = (
                part.reshape(batch, tokens, HEADS, HEAD_DIM).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
            )
        else:
            qkv = self.qkv(x).reshape(batch, tokens, 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
            query, key, value = qkv.unbind(0) if self.take == "unbind" else (qkv[0], qkv[1], qkv[2])
        mixed = attend(query, key, value, self.mask, sdpa=self.sdpa)
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class CrossAttention(nn.Module):
    """Learned queries that attend to image tokens, as in a DETR decoder: [B,T,C] -> [B,Q,C]."""

    def __init__(self, *, sdpa: bool, queries: int = 10) -> None:
        super().__init__()
        self.sdpa = sdpa
        self.queries = nn.Parameter(torch.randn(1, queries, DIM))
        self.query, self.key, self.value = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        targets = self.queries + x.mean(dim=1, keepdim=True)
        heads = [
            linear(source).view(1, -1, HEADS, HEAD_DIM).transpose(1, 2)
            for linear, source in ((self.query, targets), (self.key, x), (self.value, x))
        ]
        mixed = attend(*heads, None, sdpa=self.sdpa)
        return targets + self.proj(mixed.transpose(1, 2).reshape(1, -1, DIM))


class Block(nn.Module):
    """A pre-norm transformer block: [B,T,C] -> [B,T,C]."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM, eps=1e-6)
        self.attn = attention
        self.norm2 = nn.LayerNorm(DIM, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TimmVit(nn.Module):
    """ViT-tiny as timm writes it (class token, fused qkv): [B,3,224,224] -> [B,10]."""

    def __init__(self, depth: int, *, sdpa: bool, take: str = "unbind") -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, DIM, kernel_size=16, stride=16)
        self.cls_token = nn.Parameter(torch.randn(1, 1, DIM) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 197, DIM) * 0.02)
        self.blocks = nn.Sequential(*(Block(FusedAttention(sdpa=sdpa, take=take)) for _ in range(depth)))
        self.norm = nn.LayerNorm(DIM, eps=1e-6)
        self.head = nn.Linear(DIM, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(images.shape[0], -1, -1), patches], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def shifted_window_mask(tokens: int) -> Tensor:
    """The mask of a shifted window: each half of the tokens attends only to its own half; [1,1,T,T]."""
    half = torch.arange(tokens) >= tokens // 2
    return torch.where(half[:, None] == half[None, :], 0.0, -100.0)[None, None]


def huggingface_vit(depth: int, implementation: str) -> nn.Module:
    """ViT-tiny from transformers, with random weights."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=DIM,
        num_hidden_layers=depth,
        num_attention_heads=HEADS,
        intermediate_size=4 * DIM,
        num_labels=10,
        attn_implementation=implementation,
    )
    return ViTForImageClassification(config)
