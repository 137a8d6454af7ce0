"""Draws scenes for the detector: eight kinds of shape over noisy gradients, with overlap and distractors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SIZE = 64
MAX_OBJECTS = 6
_FINE = 3  # masks are drawn at three times the resolution, for smooth edges and exact boxes
_KEPT_BITS = 0xFC  # colors keep six bits, which halves the size of the file

Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _polygon(sides: int) -> Mask:
    half = np.pi / sides
    return lambda u, v: np.hypot(u, v) * np.cos(np.arctan2(v, u) % (2 * half) - half) < np.cos(half)


def _star(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    tip = np.abs((np.arctan2(v, u) * 5 / (2 * np.pi)) % 1 - 0.5) * 2
    return np.hypot(u, v) < 0.4 + 0.6 * tip**1.5


SHAPES: dict[str, Mask] = {
    "disc": lambda u, v: u**2 + v**2 < 1,
    "ring": lambda u, v: (u**2 + v**2 < 1) & (u**2 + v**2 > 0.3),
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) < 0.8,
    "triangle": _polygon(3),
    "pentagon": _polygon(5),
    "star": _star,
    "cross": lambda u, v: (np.minimum(np.abs(u), np.abs(v)) < 0.28) & (np.maximum(np.abs(u), np.abs(v)) < 0.95),
    "crescent": lambda u, v: (u**2 + v**2 < 1) & ((u - 0.5) ** 2 + v**2 > 0.6),
}


@dataclass(frozen=True)
class Scenes:
    """Images uint8 [N,3,S,S]; boxes float32 [N,M,4] cxcywh in [0,1] and classes int64 [N,M], padded with -1."""

    images: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray


def draw_scenes(count: int, seed: int) -> Scenes:
    """Draw `count` scenes from one seed."""
    rng = np.random.default_rng(seed)
    images = np.empty((count, 3, SIZE, SIZE), np.uint8)
    boxes = np.full((count, MAX_OBJECTS, 4), -1, np.float32)
    classes = np.full((count, MAX_OBJECTS), -1, np.int64)
    for index in range(count):
        images[index], objects = _draw_scene(rng)
        for slot, (label, box) in enumerate(objects):
            classes[index, slot], boxes[index, slot] = label, box
    return Scenes(images, boxes, classes)


def _draw_scene(rng: np.random.Generator) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    canvas = _background(rng)
    for _ in range(rng.integers(0, 4)):
        _draw_distractor(canvas, rng)
    objects: list[tuple[int, np.ndarray]] = []
    for _ in range(rng.integers(1, MAX_OBJECTS + 1)):
        label = int(rng.integers(len(SHAPES)))
        mask = _shape_mask(list(SHAPES.values())[label], rng)
        position = _place(mask, [box for _, box in objects], rng)
        if position is None:
            continue
        top, left, box = position
        _paint(canvas, mask, top, left, rng)
        objects.append((label, box))
    noisy = canvas + rng.normal(0, rng.uniform(2, 14), canvas.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8) & _KEPT_BITS, objects


def _background(rng: np.random.Generator) -> np.ndarray:
    """A bilinear gradient between four random colors: [3,S,S]."""
    corner = rng.uniform(20, 235, (3, 2, 2))
    ramp = np.linspace(0, 1, SIZE)
    weights = np.stack([1 - ramp, ramp])
    return np.einsum("cij,iy,jx->cyx", corner, weights, weights)


def _shape_mask(shape: Mask, rng: np.random.Generator) -> np.ndarray:
    """A rotated, slightly squeezed shape, cropped to its extent, at the fine resolution: bool [h,w]."""
    radius = _FINE * rng.uniform(5, 14)
    squeeze = rng.uniform(0.75, 1.0)
    reach = int(np.ceil(radius)) + 1
    grid = np.arange(-reach, reach + 1) / radius
    y, x = np.meshgrid(grid, grid, indexing="ij")
    angle = rng.uniform(0, 2 * np.pi)
    u = x * np.cos(angle) + y * np.sin(angle)
    v = (y * np.cos(angle) - x * np.sin(angle)) / squeeze
    mask = shape(u, v)
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _place(mask: np.ndarray, boxes: list[np.ndarray], rng: np.random.Generator) -> tuple[int, int, np.ndarray] | None:
    """Find a position that hides no more than a third of any earlier box; None after ten failed attempts."""
    height, width = mask.shape
    for _ in range(10):
        top = int(rng.integers(0, SIZE * _FINE - height))
        left = int(rng.integers(0, SIZE * _FINE - width))
        box = np.array([left + width / 2, top + height / 2, width, height]) / (SIZE * _FINE)
        if all(_hidden_fraction(box, earlier) < 1 / 3 for earlier in boxes):
            return top, left, box
    return None


def _hidden_fraction(box: np.ndarray, other: np.ndarray) -> float:
    """The overlap of two cxcywh boxes as a fraction of the smaller one."""
    reach = (box[2:] + other[2:]) / 2 - np.abs(box[:2] - other[:2])
    shared = np.prod(np.clip(np.minimum(reach, np.minimum(box[2:], other[2:])), 0, None))
    return float(shared / min(np.prod(box[2:]), np.prod(other[2:])))


def _paint(canvas: np.ndarray, mask: np.ndarray, top: int, left: int, rng: np.random.Generator) -> None:
    """Blend the shape in, with a plain, striped or gradient fill whose colors differ from the background."""
    fine = np.zeros((SIZE * _FINE, SIZE * _FINE), np.float32)
    fine[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    alpha = fine.reshape(SIZE, _FINE, SIZE, _FINE).mean((1, 3))
    background = (canvas * alpha).sum((1, 2)) / alpha.sum()
    colors = rng.uniform(0, 255, (2, 3))
    while np.abs(colors - background).max(axis=1).min() < 50:
        colors = rng.uniform(0, 255, (2, 3))
    y, x = np.mgrid[:SIZE, :SIZE]
    angle = rng.uniform(0, np.pi)
    along = x * np.cos(angle) + y * np.sin(angle)
    kind = rng.integers(3)
    if kind == 0:
        mix = np.zeros_like(along)
    elif kind == 1:
        mix = 0.5 + 0.5 * np.sign(np.sin(along * rng.uniform(0.8, 1.6)))
    else:
        mix = (along - along.min()) / np.ptp(along)
    fill = colors[0][:, None, None] * (1 - mix) + colors[1][:, None, None] * mix
    canvas += alpha * rng.uniform(0.8, 1.0) * (fill - canvas)


def _draw_distractor(canvas: np.ndarray, rng: np.random.Generator) -> None:
    """Blend in a line or a soft blob, neither of which is an object."""
    y, x = np.mgrid[:SIZE, :SIZE] - rng.uniform(0, SIZE, (2, 1, 1))
    angle = rng.uniform(0, np.pi)
    across = y * np.cos(angle) - x * np.sin(angle)
    if rng.random() < 0.5:
        alpha = np.clip(rng.uniform(0.6, 1.6) - np.abs(across), 0, 1)
    else:
        alpha = 0.7 * np.exp(-(x**2 + y**2) / (2 * rng.uniform(3, 7) ** 2))
    canvas += alpha * (rng.uniform(0, 255, (3, 1, 1)) - canvas)
