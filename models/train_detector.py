"""Train `detector_scenes`: a tiny RT-DETR-like detector on scenes drawn by `scenes.py`."""

from __future__ import annotations

import time

import numpy as np
import torch
from detector import Detector
from export_onnx import fix_seeds, measure, preprocess, write_data, write_model
from scenes import SHAPES, SIZE, Scenes, draw_scenes
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

NAME = "detector_scenes"
SEED = 0
TRAIN_SCENES, HELD_OUT, CALIBRATION = 12000, 240, 64
STEPS, BATCH, PEAK_LR = 4500, 32, 2e-3
MEAN = np.array([0.5, 0.5, 0.5], np.float32)
STD = np.array([0.25, 0.25, 0.25], np.float32)
CLASS_WEIGHT, L1_WEIGHT, GIOU_WEIGHT = 1.0, 5.0, 2.0  # as in RT-DETR


def corners(boxes: Tensor) -> Tensor:
    """cxcywh [...,4] -> xyxy [...,4]."""
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], dim=-1)


def iou_and_giou(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and generalized IoU of xyxy boxes, with broadcasting: [...,4], [...,4] -> [...], [...]."""
    shared = (torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])).clamp(0)
    hull = torch.maximum(first[..., 2:], second[..., 2:]) - torch.minimum(first[..., :2], second[..., :2])
    area = [(boxes[..., 2:] - boxes[..., :2]).prod(-1) for boxes in (first, second)]
    union = area[0] + area[1] - shared.prod(-1)
    iou = shared.prod(-1) / union.clamp(1e-6)
    return iou, iou - 1 + union / hull.prod(-1).clamp(1e-6)


@torch.no_grad()
def match(logits: Tensor, boxes: Tensor, true_boxes: Tensor, true_classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Match queries with true boxes at minimal cost (Hungarian method); return image, query and slot indices."""
    probability = logits.sigmoid().gather(2, true_classes.clamp(0)[:, None].expand(-1, logits.shape[1], -1))
    distance = torch.cdist(boxes, true_boxes, p=1)
    _, giou = iou_and_giou(corners(boxes)[:, :, None], corners(true_boxes)[:, None])
    cost = (L1_WEIGHT * distance - GIOU_WEIGHT * giou - 2 * probability).numpy()
    counts = (true_classes >= 0).sum(1).tolist()
    pairs = [linear_sum_assignment(cost[image, :, :count]) for image, count in enumerate(counts)]
    images = np.concatenate([np.full(len(query), image) for image, (query, _) in enumerate(pairs)])
    queries, slots = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return torch.from_numpy(images), torch.from_numpy(queries), torch.from_numpy(slots)


def layer_loss(logits: Tensor, boxes: Tensor, true_boxes: Tensor, true_classes: Tensor) -> Tensor:
    """Varifocal class loss (its target is the predicted box's IoU), L1 and generalized IoU loss, per true box."""
    image, query, slot = match(logits, boxes, true_boxes, true_classes)
    predicted, expected = boxes[image, query], true_boxes[image, slot]
    iou, giou = iou_and_giou(corners(predicted), corners(expected))
    target = torch.zeros_like(logits)
    target[image, query, true_classes[image, slot]] = iou.detach()
    weight = torch.where(target > 0, target, 0.75 * logits.detach().sigmoid() ** 2)
    class_loss = F.binary_cross_entropy_with_logits(logits, target, weight, reduction="sum")
    box_loss = L1_WEIGHT * (predicted - expected).abs().sum() + GIOU_WEIGHT * (1 - giou).sum()
    return (CLASS_WEIGHT * class_loss + box_loss) / len(image)


def augment(images: Tensor, boxes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mirror, transpose and permute the colors of a whole batch; none of this changes the class of a shape."""
    x, y, w, h = boxes.unbind(-1)
    mirror_x, mirror_y, transpose = (torch.rand(3, generator=generator) < 0.5).tolist()
    if mirror_x:
        images, x = images.flip(3), 1 - x
    if mirror_y:
        images, y = images.flip(2), 1 - y
    if transpose:
        images, x, y, w, h = images.transpose(2, 3), y, x, h, w
    return images[:, torch.randperm(3, generator=generator)], torch.stack([x, y, w, h], dim=-1)


def train(model: Detector, scenes: Scenes, steps: int) -> None:
    """Train in place with AdamW and a one-cycle learning rate; the loss is summed over decoder layers."""
    generator = torch.Generator().manual_seed(SEED)
    images = torch.from_numpy(scenes.images)
    boxes, classes = torch.from_numpy(scenes.boxes), torch.from_numpy(scenes.classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LR, total_steps=steps, pct_start=0.1)
    model.train()
    recent = 0.0
    for step in range(1, steps + 1):
        index = torch.randint(0, len(images), (BATCH,), generator=generator)
        batch, true_boxes = augment(preprocess(images[index].numpy(), MEAN, STD), boxes[index], generator)
        losses = [layer_loss(*outputs, true_boxes, classes[index]) for outputs in model.forward_layers(batch)]
        loss = torch.stack(losses).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent += float(loss.detach())
        if step % 250 == 0:
            print(f"step {step}/{steps} loss {recent / 250:.3f}", flush=True)
            recent = 0.0
    model.eval()


def main() -> None:
    started = time.process_time()
    fix_seeds(SEED)
    training = draw_scenes(TRAIN_SCENES, seed=SEED)
    held_out = draw_scenes(HELD_OUT, seed=SEED + 1)
    print(f"drawing took {time.process_time() - started:.0f} CPU-s", flush=True)
    model = Detector(SIZE, len(SHAPES))
    train(model, training, STEPS)
    write_model(NAME, model, (3, SIZE, SIZE), ["logits", "boxes"])
    write_data(
        NAME,
        calib_images=training.images[:CALIBRATION],
        eval_images=held_out.images,
        eval_boxes=held_out.boxes,
        eval_classes=held_out.classes,
        mean=MEAN,
        std=STD,
    )
    print(f"training took {time.process_time() - started:.0f} CPU-s")
    measure(NAME)


if __name__ == "__main__":
    main()
