"""Small trained models with calibration and held-out data, used by examples, tests and reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "ZooModel", "load", "names", "preprocess", "samples"]

Array = npt.NDArray[np.generic]

_FOLDER = Path(__file__).resolve().parent

# Model name -> (metric, {target name: array in the data file}).
_MODELS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "vit_digits": ("dovetail.zoo.metrics:top1", {"labels": "eval_labels"}),
    "vit_fashion": ("dovetail.zoo.metrics:top1", {"labels": "eval_labels"}),
    "detector_scenes": ("dovetail.zoo.metrics:detection", {"boxes": "eval_boxes", "classes": "eval_classes"}),
}


@dataclass(frozen=True)
class ZooModel:
    """A shipped ONNX model (batch 1) with its data; every dict holds samples along the first axis."""

    name: str
    model_path: Path
    data_path: Path
    input_name: str
    metric: str

    def calib(self) -> dict[str, Array]:
        """Return the calibration inputs, taken from the training split: float32 [N,C,H,W]."""
        return {self.input_name: self._images("calib_images")}

    def eval(self) -> dict[str, Array]:
        """Return the held-out inputs: float32 [N,C,H,W]."""
        return {self.input_name: self._images("eval_images")}

    def targets(self) -> dict[str, Array]:
        """Return the labels (ground truth) for the metric, of the held-out inputs."""
        _, targets = _MODELS[self.name]
        with np.load(self.data_path, allow_pickle=False) as data:
            return {target: data[array_name] for target, array_name in targets.items()}

    def _images(self, array_name: str) -> Array:
        with np.load(self.data_path, allow_pickle=False) as data:
            return preprocess(data[array_name], data["mean"], data["std"])


def names() -> tuple[str, ...]:
    """Return the names `load` accepts."""
    return tuple(_MODELS)


def load(name: str) -> ZooModel:
    """Return the shipped model of that name."""
    if name not in _MODELS:
        raise KeyError(f"unknown zoo model {name!r}; expected one of {', '.join(_MODELS)}")
    metric, _ = _MODELS[name]
    return ZooModel(
        name=name,
        model_path=_FOLDER / f"{name}.onnx",
        data_path=_FOLDER / f"{name}.npz",
        input_name="images",
        metric=metric,
    )


def preprocess(
    images: npt.NDArray[np.uint8], mean: npt.NDArray[np.float32], std: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Apply `(x / 255 - mean) / std` per channel: uint8 [N,C,H,W] -> float32 [N,C,H,W]."""
    per_channel = (1, -1, 1, 1)
    scaled = images.astype(np.float32) / np.float32(255)
    normalized: npt.NDArray[np.float32] = (scaled - mean.reshape(per_channel)) / std.reshape(per_channel)
    return normalized


def samples(arrays: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield one dict per sample, each array keeping a first axis of 1: {name: [N,...]} -> N x {name: [1,...]}."""
    counts = {len(array) for array in arrays.values()}
    if len(counts) != 1:
        raise ValueError(f"the arrays have different numbers of samples: {sorted(counts)}")
    for index in range(counts.pop()):
        yield {name: array[index : index + 1] for name, array in arrays.items()}
