"""The boxes of YOLOv8n, and how many of those of the float model another run finds: a metric for ``--metric``.

    dovetail fit 320n.onnx --metric tests.networks.yolo_boxes:matched_boxes --eval photographs.npz ...

The output is [1,4+C,A]: center, width and height in pixels, then a score per class, for every anchor. The labels are
the boxes that the float model finds (``boxes`` [N,16,6]: left, top, right, bottom, class, score; rows of zeros are
none).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from dovetail.model.session import Mode, open_session
from tests.equality import Array

INPUT, OUTPUT, LABELS = "images", "output0", "boxes"
# Of a box of float that has to be found again, and of the boxes among which it is looked for (as in the package).
CONFIDENT_SCORE, CANDIDATE_SCORE = 0.5, 0.25
SAME_BOX_IOU = 0.9
_SUPPRESSED_IOU = 0.45
_MOST_BOXES = 16


def float_boxes(model: Path, images: Array) -> Array:
    """The boxes of the float model as labels: [N,3,H,W] -> [N,16,6]."""
    session = open_session(model, Mode.FLOAT)
    labels = np.zeros((len(images), _MOST_BOXES, 6), np.float32)
    for row, image in zip(labels, images, strict=True):
        boxes = find_boxes(session.run([OUTPUT], {INPUT: image[None]})[0])[:_MOST_BOXES]
        row[: len(boxes)] = boxes
    return labels


def confident(labels: Array) -> Array:
    """The rows of labels that are boxes with a high score: [...,6] -> [K,6]."""
    return labels[labels[..., 5] >= CONFIDENT_SCORE]


def matched_boxes(outputs: Iterator[Mapping[str, Array]], targets: Iterator[Mapping[str, Array]]) -> dict[str, float]:
    """The metric: the share of the float model's confident boxes that are found, of the same class and place.

    ``true_boxes`` is the share of confident boxes that the float model has too, at any score: none is made up.
    """
    found, expected, true, given = 0, 0, 0, 0
    for output, target in zip(outputs, targets, strict=True):
        boxes, labels = find_boxes(output[OUTPUT]), target[LABELS].reshape(-1, 6)
        labels = labels[labels[:, 5] > 0]
        found += count_same(confident(labels), boxes)
        expected += len(confident(labels))
        true += count_same(confident(boxes), labels)
        given += len(confident(boxes))
    return {"matched_boxes": found / max(expected, 1), "true_boxes": true / given if given else float("nan")}


def count_same(boxes: Array, others: Array) -> int:
    """How many boxes have a partner of the same class with an IoU of at least 0.9; no partner is taken twice."""
    free = np.ones(len(others), bool)
    for box in boxes:
        same = np.where(free & (others[:, 4] == box[4]), overlaps(box, others), 0.0)
        if same.size and same.max() >= SAME_BOX_IOU:
            free[same.argmax()] = False
    return int((~free).sum())


def find_boxes(output: Array) -> Array:
    """Boxes of at least the candidate score, without those that overlap a better one: [1,4+C,A] -> [K,6]."""
    rows = output[0].T
    scores = rows[:, 4:].max(axis=1)
    rows, scores = rows[scores >= CANDIDATE_SCORE], scores[scores >= CANDIDATE_SCORE]
    center, half = rows[:, :2], rows[:, 2:4] / 2
    boxes = np.column_stack([center - half, center + half, rows[:, 4:].argmax(axis=1), scores])
    boxes = boxes[np.argsort(-scores, kind="stable")]
    kept: list[Array] = []
    for box in boxes:
        if not kept or overlaps(box, np.stack(kept)).max() < _SUPPRESSED_IOU:
            kept.append(box)
    return np.stack(kept) if kept else np.zeros((0, 6), np.float32)


def overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of a box with each of others: [6], [K,6] -> [K]."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:4], others[:, 2:4])
    shared = np.clip(high - low, 0, None).prod(axis=1)
    either = (box[2:4] - box[:2]).prod() + (others[:, 2:4] - others[:, :2]).prod(axis=1) - shared
    return np.divide(shared, either, out=np.zeros_like(shared), where=either > 0)
