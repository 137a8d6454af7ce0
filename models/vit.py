"""A small vision transformer in the usual ViT/DeiT layout, and the loop that trains it as a classifier."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

POSITION_STD = 0.2  # ten times the usual 0.02: training is short, so positions must be distinguishable early

Augment = Callable[[Tensor, torch.Generator], Tensor]


class Attention(nn.Module):
    """Self attention with one fused qkv projection, written with plain matmul and softmax: [B,T,C] -> [B,T,C]."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        query, key, value = qkv[0], qkv[1], qkv[2]
        scores = (query * self.head_dim**-0.5) @ key.transpose(-2, -1)
        mixed = scores.softmax(dim=-1) @ value
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class Mlp(nn.Module):
    """Two linear layers with an exact (Erf) GELU between them: [B,T,C] -> [B,T,C]."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """A pre-norm transformer block: [B,T,C] -> [B,T,C]."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, mlp_ratio * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patch convolution, class token, learned positions, pre-norm blocks, linear head: [B,1,S,S] -> [B,classes]."""

    def __init__(
        self, image_size: int, patch: int, dim: int = 64, depth: int = 4, heads: int = 2, mlp_ratio: int = 4
    ) -> None:
        super().__init__()
        tokens = (image_size // patch) ** 2 + 1
        self.patch_embed = nn.Conv2d(1, dim, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * POSITION_STD)
        self.pos_embed = nn.Parameter(torch.randn(1, tokens, dim) * POSITION_STD)
        self.blocks = nn.ModuleList(Block(dim, heads, mlp_ratio) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(images.shape[0], -1, -1), patches], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def shift(images: Tensor, generator: torch.Generator, limit: int) -> Tensor:
    """Shift each image by up to `limit` pixels both ways, padded with the darkest value: [B,1,S,S] -> [B,1,S,S]."""
    count, _, size, _ = images.shape
    padded = F.pad(images, (limit,) * 4, value=float(images.min()))[:, 0]
    top, left = torch.randint(0, 2 * limit + 1, (2, count, 1), generator=generator)
    rows = (top + torch.arange(size))[:, :, None]
    columns = (left + torch.arange(size))[:, None, :]
    return padded[torch.arange(count)[:, None, None], rows, columns][:, None]


def train_classifier(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    augment: Augment,
    *,
    epochs: int,
    batch: int,
    peak_lr: float,
    weight_decay: float = 0.05,
    label_smoothing: float = 0.1,
    seed: int = 0,
) -> None:
    """Train in place with AdamW and a one-cycle learning rate; keeps the last weights, no checkpoint is selected."""
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * math.ceil(len(images) / batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_lr, total_steps=steps, pct_start=0.15)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for index in torch.randperm(len(images), generator=generator).split(batch):
            logits = model(augment(images[index], generator))
            loss = F.cross_entropy(logits, labels[index], label_smoothing=label_smoothing)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(index)
        if epoch % max(1, epochs // 10) == 0 or epoch == epochs - 1:
            print(f"epoch {epoch + 1}/{epochs} loss {total / len(images):.4f}", flush=True)
    model.eval()
