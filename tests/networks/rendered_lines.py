"""Lines of text drawn by Pillow as input of the PP-OCRv6 recognizer and direction classifier, and their metrics.

Both take images of height 48 with values (v / 255 - 0.5) / 0.5, padded with zeros on the right. The recognizer gives
one distribution per column over blank, the characters in the file's metadata, and space; the classifier gives one over
0 and 180 degrees.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.equality import Array

Image = pytest.importorskip("PIL.Image", reason="needs the package pillow")
ImageDraw = pytest.importorskip("PIL.ImageDraw", reason="needs the package pillow")
ImageFilter = pytest.importorskip("PIL.ImageFilter", reason="needs the package pillow")
ImageFont = pytest.importorskip("PIL.ImageFont", reason="needs the package pillow")

MODEL = "PP-OCRv6_rec_small.onnx"
SHAPE = (1, 3, 48, 320)
OUTPUT = "fetch_name_0"
CLASSIFIER = "ch_ppocr_mobile_v2.0_cls_mobile.onnx"
CLASSIFIER_SHAPE = (1, 3, 48, 192)
CLASSIFIER_OUTPUT = "save_infer_model/scale_0.tmp_1"
NO_CHARACTER = -1
Metric = Callable[[Iterator[Mapping[str, Array]], Iterator[Mapping[str, Array]]], dict[str, float]]

_HEIGHT, _WIDTH = SHAPE[2:]
_UPRIGHT, _UPSIDE_DOWN = 0, 1
_BLANK = 0
_LONGEST = 16  # characters that fit the width in the largest font
_CLEAN_SIZES, _SMALL_SIZES = (26, 32), (10, 13)
_WORDS = (
    *("amber", "bridge", "copper", "dovetail", "engine", "forest", "granite", "harbor", "island", "joint", "kernel"),
    *("ladder", "marble", "notch", "orbit", "plank", "quartz", "river", "saddle", "timber", "umber", "valley"),
    *("walnut", "yellow", "zenith", "Boston", "Cairo", "Dublin", "Geneva", "Lima", "Oslo", "Paris", "Quito", "Rome"),
)


def texts(count: int, seed: int) -> list[str]:
    """Short lines of words, numbers, dates, prices and codes."""
    draw = random.Random(seed)
    kinds = (
        lambda: f"{draw.choice(_WORDS)} {draw.choice(_WORDS)}",
        lambda: f"{draw.choice(_WORDS)} {draw.randint(10, 9999)}",
        lambda: f"{draw.randint(1, 28):02d}/{draw.randint(1, 12):02d}/{draw.randint(1990, 2030)}",
        lambda: f"${draw.randint(1, 999)}.{draw.randint(0, 99):02d}",
        lambda: f"Ref {draw.randint(1000, 99999)}-{draw.choice('ABCDEFGHKLMNPRTUVWXYZ')}",
    )
    lines: list[str] = []
    while len(lines) < count:
        line = draw.choice(kinds)()
        if len(line) <= _LONGEST:
            lines.append(line)
    return lines


def clean(lines: list[str], seed: int) -> Array:
    """Dark text on a bright page, large and sharp: N lines -> float32 [N,3,48,320]."""
    draw = random.Random(seed)
    return np.stack([_as_input(_draw(line, draw.randint(*_CLEAN_SIZES), draw)) for line in lines])


def degraded(lines: list[str], seed: int) -> Array:
    """Small text, enlarged, blurred, with low contrast and noise: N lines -> float32 [N,3,48,320]."""
    draw = random.Random(seed)
    return np.stack([_as_input(_degrade(_draw(line, draw.randint(*_SMALL_SIZES), draw), draw)) for line in lines])


def directions(lines: list[str], seed: int) -> dict[str, Array]:
    """Clean and degraded lines in turn, every second pair upside down: ``x`` [N,3,48,192] and ``direction`` [N]."""
    draw = random.Random(seed)
    labels = np.array([_UPSIDE_DOWN if index // 2 % 2 else _UPRIGHT for index in range(len(lines))])
    images = []
    for index, (line, label) in enumerate(zip(lines, labels, strict=True)):
        image = _draw(line, draw.randint(*_CLEAN_SIZES), draw)
        if index % 2:
            image = _degrade(_draw(line, draw.randint(*_SMALL_SIZES), draw), draw)
        images.append(_as_input(image.rotate(180) if label else image, CLASSIFIER_SHAPE[3]))
    return {"x": np.stack(images), "direction": labels}


def _draw(line: str, size: int, draw: random.Random) -> Image.Image:
    """One line, dark on bright with a margin, as wide as the text needs."""
    font = ImageFont.load_default(size=size)
    left, top, right, bottom = font.getbbox(line)
    margin = max(2, size // 4)
    image = Image.new("L", (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin), draw.randint(215, 255))
    ImageDraw.Draw(image).text((margin - left, margin - top), line, font=font, fill=draw.randint(0, 50))
    return image


def _degrade(image: Image.Image, draw: random.Random) -> Image.Image:
    blurred = np.asarray(image.filter(ImageFilter.GaussianBlur(draw.uniform(0.4, 0.8))), dtype=np.float32)
    noise = np.random.default_rng(draw.getrandbits(32)).normal(0, draw.uniform(4, 16), blurred.shape)
    flat = 128 + (blurred - 128) * draw.uniform(0.4, 0.9) + noise
    return Image.fromarray(np.clip(flat, 0, 255).astype(np.uint8))


def _as_input(image: Image.Image, longest: int = _WIDTH) -> Array:
    width = min(longest, round(image.width * _HEIGHT / image.height))
    pixels = np.asarray(image.resize((width, _HEIGHT), Image.Resampling.BILINEAR), dtype=np.float32)
    padded = np.zeros((3, _HEIGHT, longest), np.float32)
    padded[:, :, :width] = (pixels / 255 - 0.5) / 0.5
    return padded


def characters(model: Path) -> list[str]:
    """The character of every class of the recognizer, from the metadata of the model file."""
    characters_text = {prop.key: prop.value for prop in onnx.load(model).metadata_props}["character"]
    return ["", *characters_text.split("\n"), " "]


def read_line(output: Array, dictionary: list[str]) -> str:
    """Greedy CTC decoding: the best class per column, repeats merged, blanks dropped: [1,T,C] -> text."""
    best = [_BLANK, *output[0].argmax(axis=-1).tolist()]
    return "".join(dictionary[current] for previous, current in pairwise(best) if current not in (previous, _BLANK))


def encode(lines: list[str]) -> Array:
    """The texts as code points, one row per line, padded with -1."""
    codes = np.full((len(lines), max(map(len, lines))), NO_CHARACTER, np.int32)
    for row, line in zip(codes, lines, strict=True):
        row[: len(line)] = [ord(character) for character in line]
    return codes


def exact_lines(dictionary: list[str]) -> Metric:
    """The metric: the share of lines read without a wrong character, compared with `text` as code points."""

    def metric(outputs: Iterator[Mapping[str, Array]], targets: Iterator[Mapping[str, Array]]) -> dict[str, float]:
        exact = []
        for output, target in zip(outputs, targets, strict=True):
            expected = "".join(chr(code) for code in target["text"].reshape(-1) if code != NO_CHARACTER)
            exact.append(read_line(output[OUTPUT], dictionary) == expected)
        return {"exact_lines": sum(exact) / len(exact)}

    return metric


def right_directions(
    outputs: Iterator[Mapping[str, Array]], targets: Iterator[Mapping[str, Array]]
) -> dict[str, float]:
    """The metric of the classifier: the share of lines whose direction is right."""
    pairs = zip(outputs, targets, strict=True)
    right = [output[CLASSIFIER_OUTPUT].argmax() == target["direction"].item() for output, target in pairs]
    return {"right_directions": sum(right) / len(right)}
