"""Networks that the tests of other targets export too, as ONNX files: small, with all operators of the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import tensorrt_models
from tests.backends.qnn_htp.zoo import test_detectors as detectors
from tests.backends.qnn_htp.zoo import test_encoders as encoders
from tests.backends.qnn_htp.zoo import test_vision_backbones as backbones
from tests.backends.qnn_htp.zoo.fitting import shared_export

OTHERS = ("beit", "detr", "dinov2", "yolos")
PLAIN = " without windows"
NETWORKS = (
    *backbones.NETWORKS,
    *encoders.NETWORKS,
    *detectors.SHAPES,
    *(f"{name}{PLAIN}" if name in backbones.NETWORKS else name for name in OTHERS),
)


def exported(name: str, factory: pytest.TempPathFactory) -> Path:
    """The ONNX file of a network, shared with the HTP tests if they have it."""
    if name in detectors.SHAPES:
        return detectors.shared_detectors(factory)[name]
    return shared_export(factory, name, lambda place: _export(name, place))


def _export(name: str, place: Path) -> Path:
    if name in backbones.NETWORKS:
        return backbones.export_network(name, place)
    if name in encoders.NETWORKS:
        return encoders.export_network(name, place)
    return _other(name.removesuffix(PLAIN), place)


def _other(name: str, place: Path) -> Path:
    return tensorrt_models.export_model(name, "torchscript-eager", place, tensorrt_models.Size(1, 1))
