"""Metrics over streams: one dict of model outputs and one dict of targets per sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from dovetail.zoo.detection_map import DetectionMap

__all__ = ["detection", "top1"]

Sample = Mapping[str, npt.NDArray[np.generic]]

MAX_DETECTIONS = 100  # per image, as in the COCO evaluation


def top1(outputs: Iterator[Sample], targets: Iterator[Sample]) -> dict[str, float]:
    """Return the share of samples whose largest logit is the label: `logits` [1,C] against `labels` [1] or scalar."""
    hits = count = 0
    for output, target in zip(outputs, targets, strict=True):
        predictions = output["logits"].reshape(-1, output["logits"].shape[-1]).argmax(axis=-1)
        hits += int(np.sum(predictions == target["labels"].reshape(-1)))
        count += len(predictions)
    if count == 0:
        raise ValueError("top1 received no samples")
    return {"top1": hits / count}


def detection(outputs: Iterator[Sample], targets: Iterator[Sample]) -> dict[str, float]:
    """Return COCO-style mAP of a DETR-like detector, which needs no non-maximum suppression.

    Outputs are `logits` [1,Q,C] (one sigmoid per class) and `boxes` [1,Q,4] (cxcywh in [0,1]);
    targets are `boxes` [1,M,4] or [M,4] and `classes` [1,M] or [M], padded with -1.
    """
    score = DetectionMap()
    for output, target in zip(outputs, targets, strict=True):
        logits = output["logits"].astype(np.float64).reshape(-1, output["logits"].shape[-1])
        boxes = corners(output["boxes"].astype(np.float64).reshape(-1, 4))
        best = np.argsort(-logits, axis=None, kind="stable")[:MAX_DETECTIONS]
        query, label = np.unravel_index(best, logits.shape)
        true_classes = target["classes"].astype(np.int64).reshape(-1)
        is_box = true_classes >= 0
        score.add(
            boxes=boxes[query],
            scores=logits[query, label],  # only the order matters, so the sigmoid is left out
            classes=label.astype(np.int64),
            true_boxes=corners(target["boxes"].astype(np.float64).reshape(-1, 4)[is_box]),
            true_classes=true_classes[is_box],
        )
    return {"map50_95": score.result(), "map50": score.result(thresholds=(0.5,))}


def corners(boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Convert center and size to corners: cxcywh [N,4] -> xyxy [N,4]."""
    center, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([center - half, center + half], axis=1)
