"""Mean average precision of a detector, computed as the COCO evaluation does for boxes of all sizes.

Within an image and a class, detections are taken by falling score and each claims the free true box it overlaps most,
if the overlap reaches the threshold. Precision is made monotone from the right and read at 101 recalls; the mean runs
over thresholds and over the classes that have at least one true box.
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
    """What one class has gathered: the IoU matrices [detections, true boxes] per image, by falling score."""

    scores: list[Floats] = field(default_factory=list)
    ious: list[Floats] = field(default_factory=list)
    true_count: int = 0


class DetectionMap:
    """Gathers detections image by image and gives the mean average precision at the end."""

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
            chosen = np.flatnonzero(classes == label)
            chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
            truth = true_boxes[true_classes == label]
            record = self._records[int(label)]
            record.scores.append(scores[chosen])
            record.ious.append(box_iou(boxes[chosen], truth))
            record.true_count += len(truth)

    def result(self, thresholds: Sequence[float] = COCO_THRESHOLDS) -> float:
        """Return the mean average precision over the thresholds and the classes that occur in the truth."""
        records = [record for record in self._records.values() if record.true_count]
        if not records:
            raise ValueError("there is no true box to find")
        return float(np.mean([_average_precision(record, limit) for record in records for limit in thresholds]))


def box_iou(first: Floats, second: Floats) -> Floats:
    """Return the overlap of every pair over its union: xyxy [A,4], xyxy [B,4] -> [A,B]."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared: Floats = np.clip(high - low, 0, None).prod(axis=2)
    union = _area(first)[:, None] + _area(second)[None, :] - shared
    overlap: Floats = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return overlap


def _area(boxes: Floats) -> Floats:
    area: Floats = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1)
    return area


def _claims(ious: Floats, threshold: float) -> npt.NDArray[np.bool_]:
    """Say which detections of an image find a true box: [D,M] by falling score -> [D]."""
    found = np.zeros(len(ious), dtype=np.bool_)
    if not ious.size:
        return found
    free = np.ones(ious.shape[1], dtype=np.bool_)
    for row in np.flatnonzero(ious.max(axis=1) >= threshold):
        open_ious = np.where(free, ious[row], -1.0)
        best = int(open_ious.argmax())
        if open_ious[best] >= threshold:
            found[row] = True
            free[best] = False
    return found


def _average_precision(record: _ClassRecord, threshold: float) -> float:
    order = np.argsort(-np.concatenate(record.scores), kind="stable")
    found = np.concatenate([_claims(ious, threshold) for ious in record.ious])[order]
    if not len(found):
        return 0.0
    hits = np.cumsum(found)
    recall = hits / record.true_count
    precision = np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1]
    index = np.searchsorted(recall, _RECALLS, side="left")
    return float(np.where(index < len(precision), precision[np.minimum(index, len(precision) - 1)], 0.0).mean())
