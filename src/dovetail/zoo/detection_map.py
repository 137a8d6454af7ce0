"""Mean average precision of a detector, computed as the COCO evaluation does for boxes of all sizes.

Within an image and a class, detections are processed by descending score, and each is matched to the unmatched true box
that it overlaps most, if the overlap reaches the threshold. Precision is made monotone from the right and sampled at
101 recalls; the mean is over thresholds and over the classes that have at least one true box.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["COCO_THRESHOLDS", "DetectionMap", "box_iou"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COCO_THRESHOLDS: tuple[float, ...] = tuple(float(value) for value in np.linspace(0.5, 0.95, 10))
_RECALLS = np.linspace(0.0, 1.0, 101)


@dataclass
class _ClassRecord:
    """The detections of one class: per image, by descending score, scores and IoU matrix [detections, true boxes]."""

    scores: list[Floats] = field(default_factory=list)
    ious: list[Floats] = field(default_factory=list)
    true_count: int = 0


class DetectionMap:
    """Collects detections image by image and computes the mean average precision at the end."""

    def __init__(self) -> None:
        self._records: defaultdict[int, _ClassRecord] = defaultdict(_ClassRecord)

    def add(self, *, boxes: Floats, scores: Floats, classes: Ints, true_boxes: Floats, true_classes: Ints) -> None:
        """Add one image: detections `boxes` [D,4] xyxy, `scores` [D], `classes` [D]; truth [M,4] xyxy and [M]."""
        if not len(boxes) == len(scores) == len(classes):
            raise ValueError(f"{len(boxes)} boxes, {len(scores)} scores and {len(classes)} classes do not match")
        if len(true_boxes) != len(true_classes):
            raise ValueError(f"{len(true_boxes)} true boxes and {len(true_classes)} true classes do not match")
        if not np.isfinite(scores).all() or not np.isfinite(boxes).all():
            raise ValueError("a detection has a score or box that is not finite")
        for label in np.union1d(classes, true_classes).tolist():
            detections = np.flatnonzero(classes == label)
            detections = detections[np.argsort(-scores[detections], kind="stable")]
            truth = true_boxes[true_classes == label]
            record = self._records[int(label)]
            record.scores.append(scores[detections])
            record.ious.append(box_iou(boxes[detections], truth))
            record.true_count += len(truth)

    def result(self, thresholds: Sequence[float] = COCO_THRESHOLDS) -> float:
        """Return the mean average precision over the thresholds and the classes that have a true box."""
        records = [record for record in self._records.values() if record.true_count]
        if not records:
            raise ValueError("the labels contain no true box")
        return float(np.mean([_average_precision(record, limit) for record in records for limit in thresholds]))


def box_iou(first: Floats, second: Floats) -> Floats:
    """Return the intersection over union of every pair of boxes: xyxy [A,4], xyxy [B,4] -> [A,B]."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    intersection: Floats = np.clip(high - low, 0, None).prod(axis=2)
    union = _area(first)[:, None] + _area(second)[None, :] - intersection
    iou: Floats = np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)
    return iou


def _area(boxes: Floats) -> Floats:
    area: Floats = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1)
    return area


def _matched(ious: Floats, threshold: float) -> npt.NDArray[np.bool_]:
    """Return which detections of an image match a true box: [D,M] by descending score -> [D]."""
    matched = np.zeros(len(ious), dtype=np.bool_)
    if not ious.size:
        return matched
    free = np.ones(ious.shape[1], dtype=np.bool_)
    for row in np.flatnonzero(ious.max(axis=1) >= threshold):
        free_ious = np.where(free, ious[row], -1.0)
        best = int(free_ious.argmax())
        if free_ious[best] >= threshold:
            matched[row] = True
            free[best] = False
    return matched


def _average_precision(record: _ClassRecord, threshold: float) -> float:
    order = np.argsort(-np.concatenate(record.scores), kind="stable")
    matched = np.concatenate([_matched(ious, threshold) for ious in record.ious])[order]
    if not len(matched):
        return 0.0
    hits = np.cumsum(matched)
    recall = hits / record.true_count
    precision = np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1]
    index = np.searchsorted(recall, _RECALLS, side="left")
    return float(np.where(index < len(precision), precision[np.minimum(index, len(precision) - 1)], 0.0).mean())
