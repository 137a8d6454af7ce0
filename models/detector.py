"""A tiny detector built like RT-DETR: conv backbone, attention on the coarse map, deformable decoder, no NMS."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM = 64
HEADS = 2
HEAD_DIM = DIM // HEADS
POINTS = 4
LEVELS = 2
ANCHOR_SIZE = 0.25  # of the image side
STRIDE = 8  # of the coarse map; each of its cells becomes a query


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A 3x3 convolution with batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class Attention(nn.Module):
    """Self attention with separate projections and positions added to query and key only: [B,T,C] -> [B,T,C]."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(DIM, DIM)
        self.k_proj = nn.Linear(DIM, DIM)
        self.v_proj = nn.Linear(DIM, DIM)
        self.out_proj = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        split = (batch, tokens, HEADS, HEAD_DIM)
        query = self.q_proj(x + position).reshape(split).transpose(1, 2)
        key = self.k_proj(x + position).reshape(split).transpose(1, 2)
        value = self.v_proj(x).reshape(split).transpose(1, 2)
        weights = (query @ key.transpose(-2, -1) * HEAD_DIM**-0.5).softmax(dim=-1)
        return self.out_proj((weights @ value).transpose(1, 2).reshape(batch, tokens, DIM))


class FeedForward(nn.Module):
    """Two linear layers with GELU: [B,T,C] -> [B,T,C]."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(DIM, hidden)
        self.fc2 = nn.Linear(hidden, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class DeformableAttention(nn.Module):
    """Each query samples POINTS points per level and head around its box: [B,Q,C], maps [B,C,H,W] -> [B,Q,C]."""

    def __init__(self) -> None:
        super().__init__()
        self.value_proj = nn.ModuleList(nn.Conv2d(DIM, DIM, 1) for _ in range(LEVELS))
        self.offsets = nn.Linear(DIM, HEADS * LEVELS * POINTS * 2)
        self.weights = nn.Linear(DIM, HEADS * LEVELS * POINTS)
        self.out_proj = nn.Linear(DIM, DIM)
        nn.init.zeros_(self.offsets.weight)
        corners = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
        spread = torch.tensor([0.4, 0.9])[
            :, None, None, None
        ]  # the first head samples inside the box, the second at its edge
        with torch.no_grad():
            self.offsets.bias.copy_((spread * corners).expand(HEADS, LEVELS, POINTS, 2).flatten())

    def forward(self, query: Tensor, boxes: Tensor, maps: list[Tensor]) -> Tensor:
        batch, queries, _ = query.shape
        offsets = self.offsets(query).reshape(batch, queries, HEADS, LEVELS * POINTS, 2)
        center, size = boxes[:, :, None, None, :2], boxes[:, :, None, None, 2:]
        points = ((center + offsets * size * 0.5) * 2 - 1).transpose(1, 2).flatten(0, 1)
        sampled = []
        for level, (proj, features) in enumerate(zip(self.value_proj, maps, strict=True)):
            value = proj(features).reshape(batch * HEADS, HEAD_DIM, *features.shape[-2:])
            grid = points[:, :, level * POINTS : (level + 1) * POINTS]
            sampled.append(F.grid_sample(value, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
        weights = self.weights(query).reshape(batch, queries, HEADS, LEVELS * POINTS).softmax(dim=-1)
        weights = weights.transpose(1, 2).reshape(batch * HEADS, 1, queries, LEVELS * POINTS)
        mixed = (torch.cat(sampled, dim=-1) * weights).sum(dim=-1)
        return self.out_proj(mixed.reshape(batch, DIM, queries).transpose(1, 2))


class EncoderLayer(nn.Module):
    """A post-norm transformer layer over the coarse map: [B,T,C] -> [B,T,C]."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.norm1 = nn.LayerNorm(DIM)
        self.ffn = FeedForward(2 * DIM)
        self.norm2 = nn.LayerNorm(DIM)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attn(x, position))
        return self.norm2(x + self.ffn(x))


class DecoderLayer(nn.Module):
    """Self attention over queries, deformable attention over the maps, feed-forward, box and class heads."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.norm1 = nn.LayerNorm(DIM)
        self.cross_attn = DeformableAttention()
        self.norm2 = nn.LayerNorm(DIM)
        self.ffn = FeedForward(2 * DIM)
        self.norm3 = nn.LayerNorm(DIM)
        self.box_head = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, 4))
        self.class_head = nn.Linear(DIM, classes)
        nn.init.zeros_(self.box_head[2].weight)
        nn.init.zeros_(self.box_head[2].bias)
        nn.init.constant_(self.class_head.bias, -3.0)

    def forward(
        self, query: Tensor, position: Tensor, box_logits: Tensor, maps: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        query = self.norm1(query + self.self_attn(query, position))
        query = self.norm2(query + self.cross_attn(query + position, box_logits.sigmoid(), maps))
        query = self.norm3(query + self.ffn(query))
        return query, self.class_head(query), box_logits + self.box_head(query)


class Detector(nn.Module):
    """Images [B,3,S,S] -> class logits [B,Q,K] and boxes [B,Q,4] cxcywh in [0,1].

    Each cell of the encoded coarse map becomes a query. This needs no TopK, which many compilers reject, and with
    purely learned queries the exporter would constant-fold the first self attention.
    """

    def __init__(self, image_size: int, classes: int) -> None:
        super().__init__()
        self.stem = conv(3, 16, stride=2)
        self.stage1 = nn.Sequential(conv(16, 32, stride=2), conv(32, 48))
        self.stage2 = nn.Sequential(conv(48, 64, stride=2), conv(64, DIM))
        self.lateral = nn.Conv2d(48, DIM, 1)
        cells = image_size // STRIDE
        self.position = nn.Parameter(torch.randn(1, cells * cells, DIM) * 0.2)
        self.encoder = EncoderLayer()
        self.anchors = nn.Parameter(_anchor_logits(cells))
        self.decoder = nn.ModuleList(DecoderLayer(classes) for _ in range(2))

    def forward_layers(self, images: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the logits and boxes after each decoder layer; the last pair is the output of the model."""
        fine = self.stage1(self.stem(images))
        coarse = self.stage2(fine)
        tokens = self.encoder(coarse.flatten(2).transpose(1, 2), self.position)
        coarse = tokens.transpose(1, 2).reshape(coarse.shape)
        fine = self.lateral(fine) + F.interpolate(coarse, scale_factor=2.0, mode="nearest")

        query, box_logits = tokens, self.anchors.expand(images.shape[0], -1, -1)
        outputs = []
        for layer in self.decoder:
            query, logits, box_logits = layer(query, self.position, box_logits, [fine, coarse])
            outputs.append((logits, box_logits.sigmoid()))
            box_logits = box_logits.detach()
        return outputs

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward_layers(images)[-1]


def _anchor_logits(cells: int) -> Tensor:
    """Anchor boxes before the sigmoid, one at the center of each cell: [1,cells*cells,4]."""
    line = (torch.arange(cells) + 0.5) / cells
    y, x = torch.meshgrid(line, line, indexing="ij")
    size = torch.full_like(x, ANCHOR_SIZE)
    return torch.stack([x, y, size, size], dim=-1).reshape(1, -1, 4).logit()
