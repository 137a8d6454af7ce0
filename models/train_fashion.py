"""Train `vit_fashion`: a ViT on Fashion-MNIST, taken from the Debian package `dataset-fashion-mnist`."""

from __future__ import annotations

import gzip
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from export_onnx import fix_seeds, measure, preprocess, write_data, write_model
from torch import Tensor
from vit import VisionTransformer, shift, train_classifier

NAME = "vit_fashion"
SEED = 0
HELD_OUT = 2500
CALIBRATION = 128
PACKAGE = "dataset-fashion-mnist"


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images and shift by up to two pixels."""
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    return shift(torch.where(mirrored, images.flip(-1), images), generator, limit=2)


def read_idx(path: Path) -> np.ndarray:
    """Read a gzipped IDX file of bytes: magic 0x0000080N, N big-endian sizes, then the values."""
    raw = gzip.decompress(path.read_bytes())
    rank = raw[3]
    shape = np.frombuffer(raw, ">u4", count=rank, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)


def fetch_fashion() -> dict[str, np.ndarray]:
    """Download and unpack the Debian package in a temporary folder and return its four arrays."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "update", "-q"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["apt-get", "download", "-q", PACKAGE], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        archive = next(Path(folder).glob("*.deb"))
        subprocess.run(["dpkg", "-x", str(archive), folder], check=True)
        data = Path(folder, "usr/share/datasets/fashion-mnist")
        return {
            "train_x": read_idx(data / "train-images-idx3-ubyte.gz")[:, None],
            "train_y": read_idx(data / "train-labels-idx1-ubyte.gz").astype(np.int64),
            "test_x": read_idx(data / "t10k-images-idx3-ubyte.gz")[:, None],
            "test_y": read_idx(data / "t10k-labels-idx1-ubyte.gz").astype(np.int64),
        }


def main() -> None:
    started = time.process_time()
    fix_seeds(SEED)
    data = fetch_fashion()
    mean = np.array([data["train_x"].mean() / 255], np.float32)
    std = np.array([data["train_x"].std() / 255], np.float32)

    model = VisionTransformer(image_size=28, patch=4)
    train_classifier(
        model, preprocess(data["train_x"], mean, std), torch.from_numpy(data["train_y"]), augment,
        epochs=8, batch=128, peak_lr=2e-3, seed=SEED,
    )  # fmt: skip
    write_model(NAME, model, (1, 28, 28), ["logits"])
    write_data(
        NAME,
        calib_images=data["train_x"][:CALIBRATION],
        eval_images=data["test_x"][:HELD_OUT],
        eval_labels=data["test_y"][:HELD_OUT],
        mean=mean,
        std=std,
    )
    print(f"training took {time.process_time() - started:.0f} CPU-s")
    measure(NAME)


if __name__ == "__main__":
    main()
