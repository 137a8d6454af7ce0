"""Networks that the tests of other targets build, as ONNX files: small, with every operator of the real ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from bench import tensorrt_models
from tests.backends.qnn_htp.zoo import test_detectors as detectors
from tests.backends.qnn_htp.zoo import test_encoders as encoders
from tests.backends.qnn_htp.zoo import test_vision_backbones as backbones
from tests.backends.qnn_htp.zoo.fitting import export, keep_sizes


def _square(size: int) -> tuple[int, ...]:
    return 1, 3, size, size


def _kept(make: Callable[[], nn.Module]) -> nn.Module:
    return keep_sizes(make())


# How it is made, the shape of its picture, and whether dynamo exports it: TorchScript does so in a third of the time.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    **{
        name: (partial(_kept, make), _square(size), False)
        for name, (make, size, *_) in {**backbones.NETWORKS, **encoders.NETWORKS}.items()
        if name != "dinov2"  # in windows it is the backbone of RF-DETR
    },
    **{
        name: (partial(tensorrt_models.MODELS[name][0], 1, 1), _square(tensorrt_models.MODELS[name][1]), False)
        for name in ("beit", "detr", "dinov2", "yolos")
    },
    "rt_detr": (detectors.rt_detr, detectors.RT_SHAPE, False),
    "rf_detr": (detectors.rf_detr, detectors.RF_SHAPE, True),
}


def exported(name: str, path: Path) -> Path:
    """The file of a network."""
    make, shape, dynamo = NETWORKS[name]
    return export(make(), shape, path, dynamo=dynamo)
