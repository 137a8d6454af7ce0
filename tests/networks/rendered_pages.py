"""Pages with lines of text drawn by Pillow as input of the PP-OCRv6 detector, and the lines in its output.

The detector takes images with values (v / 255 - 0.5) / 0.5 and gives the probability of text for each pixel, which is
high in the core of every line: the found core is widened as its post-processing does (DB, ratio 1.6).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from tests.equality import Array
from tests.networks.rendered_lines import texts

Image = pytest.importorskip("PIL.Image", reason="needs the package pillow")
ImageDraw = pytest.importorskip("PIL.ImageDraw", reason="needs the package pillow")
ImageFont = pytest.importorskip("PIL.ImageFont", reason="needs the package pillow")
ndimage = pytest.importorskip("scipy.ndimage", reason="needs the package scipy")

MODEL = "PP-OCRv6_det_small.onnx"
SHAPE = (1, 3, 320, 480)
INPUT, OUTPUT, LABELS = "x", "fetch_name_0", "lines"

_HEIGHT, _WIDTH = SHAPE[2:]
_SIZES, _LINES = (14, 26), (4, 7)
_MARGIN = 12
_MOST_LINES = 8
_TEXT, _FOUND_SCORE, _SMALLEST = 0.3, 0.5, 3  # of the package's configuration: thresh, box_thresh, min_size
_WIDENED = 1.6
_SAME_LINE_IOU = 0.5


def pages(count: int, seed: int) -> dict[str, Array]:
    """Pages and the boxes of their lines: ``x`` [N,3,320,480] and ``lines`` [N,8,4], rows of zeros are none."""
    draw = random.Random(seed)
    drawn = [_page(draw) for _ in range(count)]
    return {INPUT: np.stack([page for page, _ in drawn]), LABELS: np.stack([lines for _, lines in drawn])}


def _page(draw: random.Random) -> tuple[Array, Array]:
    dark_page = draw.random() < 0.25
    paper, ink = (
        (draw.randint(0, 60), draw.randint(190, 255)) if dark_page else (draw.randint(190, 255), draw.randint(0, 60))
    )
    image = Image.new("L", (_WIDTH, _HEIGHT), paper)
    lines = np.zeros((_MOST_LINES, 4), np.float32)
    count = draw.randint(*_LINES)
    for number, text in enumerate(texts(count, draw.getrandbits(32))):
        font = ImageFont.load_default(size=draw.randint(*_SIZES))
        left, top, right, bottom = font.getbbox(text)
        width, height = int(right - left), int(bottom - top)
        band = _HEIGHT // count
        x = draw.randint(_MARGIN, _WIDTH - width - _MARGIN)
        y = number * band + draw.randint(0, max(0, band - height - _MARGIN))
        ImageDraw.Draw(image).text((x - left, y - top), text, font=font, fill=ink)
        lines[number] = (x, y, x + width, y + height)
    noise = np.random.default_rng(draw.getrandbits(32)).normal(0, draw.uniform(0, 8), (_HEIGHT, _WIDTH))
    pixels = np.clip(np.asarray(image, np.float32) + noise, 0, 255).astype(np.float32)
    return np.repeat(((pixels / 255 - 0.5) / 0.5)[None], 3, axis=0).astype(np.float32), lines


def found_lines(outputs: Iterator[Mapping[str, Array]], targets: Iterator[Mapping[str, Array]]) -> dict[str, float]:
    """The metric: the harmonic mean of the shares of drawn lines that are found and of found lines that were drawn."""
    both, drawn, found = 0, 0, 0
    for output, target in zip(outputs, targets, strict=True):
        labels = target[LABELS].reshape(-1, 4)
        labels = labels[labels[:, 2] > 0]
        boxes = find_lines(output[OUTPUT])
        both += sum(max((_iou(label, box) for box in boxes), default=0.0) >= _SAME_LINE_IOU for label in labels)
        drawn, found = drawn + len(labels), found + len(boxes)
    return {"found_lines": 2 * both / max(drawn + found, 1)}


def find_lines(output: Array) -> list[tuple[float, ...]]:
    """The boxes of connected text, widened: [1,1,H,W] -> (left, top, right, bottom) for each."""
    text = output[0, 0]
    labelled, _ = ndimage.label(text > _TEXT)
    boxes = []
    for rows, columns in ndimage.find_objects(labelled):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if min(height, width) >= _SMALLEST and text[rows, columns].mean() >= _FOUND_SCORE:
            more = height * width * _WIDENED / (2 * (height + width))
            boxes.append((columns.start - more, rows.start - more, columns.stop + more, rows.stop + more))
    return boxes


def _iou(one: Array, other: tuple[float, ...]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(shared / (sum(areas) - shared))
