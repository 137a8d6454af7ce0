"""Lines of text drawn by Pillow, as the PP-OCRv6 recogniser takes them, and how its output is read.

The recogniser takes pictures of height 48 with values (v / 255 - 0.5) / 0.5, padded with zeros on the right.
Its output is one distribution per column over [blank, the characters in the file's metadata, space].
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFilter, ImageFont

HEIGHT, WIDTH = 48, 320
OUTPUT = "fetch_name_0"
NO_CHARACTER = -1
_BLANK = 0
_LONGEST = 16  # characters: what fits WIDTH with the largest clean font
_WORDS = (
    "amber bridge copper dovetail engine forest granite harbor island joint kernel ladder marble notch orbit plank "
    "quartz river saddle timber umber valley walnut yellow zenith Boston Cairo Dublin Geneva Lima Oslo Paris Quito Rome"
).split()


def texts(count: int, seed: int) -> list[str]:
    """Short lines of words, prices, dates and codes."""
    draw = random.Random(seed)
    lines = []
    while len(lines) < count:
        kinds = (
            lambda: f"{draw.choice(_WORDS)} {draw.choice(_WORDS)}",
            lambda: f"{draw.choice(_WORDS)} {draw.randint(10, 9999)}",
            lambda: f"{draw.randint(1, 28):02d}/{draw.randint(1, 12):02d}/{draw.randint(1990, 2030)}",
            lambda: f"${draw.randint(1, 999)}.{draw.randint(0, 99):02d}",
            lambda: f"Ref {draw.randint(1000, 99999)}-{draw.choice('ABCDEFGHKLMNPRTUVWXYZ')}",
        )
        line = draw.choice(kinds)()
        if len(line) <= _LONGEST:
            lines.append(line)
    return lines


def clean(lines: list[str], seed: int) -> np.ndarray:
    """Dark text on a bright page, large and sharp: N lines -> float32 [N,3,48,320]."""
    draw = random.Random(seed)
    return np.stack([_as_input(_drawn(line, draw.randint(26, 32), draw)) for line in lines])


def degraded(lines: list[str], seed: int) -> np.ndarray:
    """Small fonts enlarged, blurred, of low contrast, with noise: N lines -> float32 [N,3,48,320]."""
    draw = random.Random(seed)
    return np.stack([_as_input(_worn(_drawn(line, draw.randint(10, 13), draw), draw)) for line in lines])


def _drawn(line: str, size: int, draw: random.Random) -> Image.Image:
    """One line in black on white with a margin, as wide as it needs to be."""
    font = ImageFont.load_default(size=size)
    left, top, right, bottom = font.getbbox(line)
    margin = max(2, size // 4)
    image = Image.new("L", (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin), draw.randint(215, 255))
    ImageDraw.Draw(image).text((margin - left, margin - top), line, font=font, fill=draw.randint(0, 50))
    return image


def _worn(image: Image.Image, draw: random.Random) -> Image.Image:
    blurred = image.filter(ImageFilter.GaussianBlur(draw.uniform(0.4, 0.8)))
    pixels = np.asarray(blurred, dtype=np.float32)
    noise = np.random.default_rng(draw.getrandbits(32)).normal(0, draw.uniform(4, 16), pixels.shape)
    flat = 128 + (pixels - 128) * draw.uniform(0.4, 0.9) + noise
    return Image.fromarray(np.clip(flat, 0, 255).astype(np.uint8))


def _as_input(image: Image.Image) -> np.ndarray:
    width = min(WIDTH, round(image.width * HEIGHT / image.height))
    pixels = np.asarray(image.resize((width, HEIGHT), Image.Resampling.BILINEAR), dtype=np.float32)
    padded = np.zeros((3, HEIGHT, WIDTH), np.float32)
    padded[:, :, :width] = (pixels / 255 - 0.5) / 0.5
    return padded


def characters(model: Path) -> list[str]:
    """What every class of the recogniser stands for, from the model file's own metadata."""
    listed = {prop.key: prop.value for prop in onnx.load(model).metadata_props}["character"]
    return ["", *listed.split("\n"), " "]


def read_line(output: np.ndarray, dictionary: list[str]) -> str:
    """Greedy CTC: the best class per column, repeats as one, blanks dropped: [1,T,C] -> text."""
    best = [_BLANK, *output[0].argmax(axis=-1).tolist()]
    return "".join(dictionary[now] for before, now in pairwise(best) if now not in (before, _BLANK))


def encode(lines: list[str]) -> np.ndarray:
    """The texts as code points, one row per line, padded with -1."""
    codes = np.full((len(lines), max(map(len, lines))), NO_CHARACTER, np.int32)
    for row, line in zip(codes, lines, strict=True):
        row[: len(line)] = [ord(character) for character in line]
    return codes


class ExactLines:
    """The metric: how many lines are read without a single wrong character."""

    __qualname__ = "exact_lines"

    def __init__(self, dictionary: list[str]) -> None:
        self._dictionary = dictionary

    def __call__(
        self, outputs: Iterator[Mapping[str, np.ndarray]], targets: Iterator[Mapping[str, np.ndarray]]
    ) -> dict[str, float]:
        """Outputs as the model gives them, targets as `text` code points -> the share of exact lines."""
        exact = []
        for output, target in zip(outputs, targets, strict=True):
            wanted = "".join(chr(code) for code in target["text"].reshape(-1) if code != NO_CHARACTER)
            exact.append(read_line(output[OUTPUT], self._dictionary) == wanted)
        return {"exact_lines": sum(exact) / len(exact)}
