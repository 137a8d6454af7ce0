"""Train `vit_digits`: a ViT on the 8x8 handwritten digits that ship with scikit-learn."""

from __future__ import annotations

import time

import numpy as np
import torch
from export_onnx import fix_seeds, measure, preprocess, write_data, write_model
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from vit import VisionTransformer, shift, train_classifier

NAME = "vit_digits"
SEED = 0
HELD_OUT = 450
CALIBRATION = 64


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift a third of the images by up to one pixel and add a little noise."""
    moving = torch.rand(len(images), 1, 1, 1, generator=generator) < 1 / 3
    moved = torch.where(moving, shift(images, generator, limit=1), images)
    return moved + 0.1 * torch.randn(moved.shape, generator=generator)


def main() -> None:
    started = time.process_time()
    fix_seeds(SEED)
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[:, None]  # stored values are 0..16
    labels = digits.target.astype(np.int64)
    train_x, eval_x, train_y, eval_y = train_test_split(
        images, labels, test_size=HELD_OUT, random_state=SEED, stratify=labels
    )
    mean = np.array([train_x.mean() / 255], np.float32)
    std = np.array([train_x.std() / 255], np.float32)

    model = VisionTransformer(image_size=8, patch=2)
    train_classifier(
        model, preprocess(train_x, mean, std), torch.from_numpy(train_y), augment,
        epochs=60, batch=64, peak_lr=2e-3, seed=SEED,
    )  # fmt: skip
    write_model(NAME, model, (1, 8, 8), ["logits"])
    write_data(NAME, calib_images=train_x[:CALIBRATION], eval_images=eval_x, eval_labels=eval_y, mean=mean, std=std)
    print(f"training took {time.process_time() - started:.0f} CPU-s")
    measure(NAME)


if __name__ == "__main__":
    main()
