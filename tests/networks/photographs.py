"""Crops and jitters of the photographs in the wheel of scikit-image, as input of detectors; nothing is downloaded."""

from __future__ import annotations

import random
from importlib.resources import as_file, files

import numpy as np
import pytest

from tests.equality import Array

Image = pytest.importorskip("PIL.Image", reason="needs the package pillow")
ImageEnhance = pytest.importorskip("PIL.ImageEnhance", reason="needs the package pillow")
skimage = pytest.importorskip("skimage", reason="needs the package scikit-image")

# What the wheel has of people, and of other things. The functions of ``skimage.data`` would download most others.
PEOPLE = ("astronaut.png", "camera.png")
OTHERS = ("chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")

_CROP = (0.6, 1.0)  # of the shorter side
_DEGREES = 8.0
_JITTER = (0.7, 1.3)  # brightness, contrast and color


def crops(names: tuple[str, ...], count: int, size: int, seed: int) -> Array:
    """Square crops of the photographs in turn, mirrored, rotated and with other colors: float32 [N,3,S,S] in [0,1]."""
    draw = random.Random(seed)
    photographs = [photograph(name) for name in names]
    return np.stack([_crop(photographs[index % len(names)], size, draw) for index in range(count)])


def photograph(name: str) -> Image.Image:
    """One of them, in color as far as it is."""
    with as_file(files("skimage") / "data" / name) as path:
        return Image.open(path).convert("RGB")


def _crop(image: Image.Image, size: int, draw: random.Random) -> Array:
    side = round(min(image.size) * draw.uniform(*_CROP))
    left, top = draw.randint(0, image.width - side), draw.randint(0, image.height - side)
    turned = image.rotate(draw.uniform(-_DEGREES, _DEGREES), Image.Resampling.BILINEAR)
    cut = turned.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)
    if draw.random() < 0.5:
        cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        cut = change(cut).enhance(draw.uniform(*_JITTER))
    return (np.asarray(cut, dtype=np.float32) / 255).transpose(2, 0, 1)
