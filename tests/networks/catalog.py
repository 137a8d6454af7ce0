"""Small networks with every operator of the real ones, by name: what several targets are tested with."""

from __future__ import annotations

from pathlib import Path

from tests.networks import backbones, detectors, encoders, unusual
from tests.networks.hugging_face import Size, hugging_face

OTHERS = ("beit", "detr", "dinov2", "yolos")
PLAIN = " without windows"
NETWORKS = (
    *backbones.NETWORKS,
    *encoders.NETWORKS,
    *detectors.NETWORKS,
    *(f"{name}{PLAIN}" if name in backbones.NETWORKS else name for name in OTHERS),
)


def network(name: str) -> Path:
    """The file of a network."""
    if name in detectors.NETWORKS:
        return detectors.detector(name)
    if name in backbones.NETWORKS:
        return backbones.backbone(name)
    if name in encoders.NETWORKS:
        return encoders.encoder(name)
    if name in unusual.NETWORKS:
        return unusual.unusual(name)
    return hugging_face(name.removesuffix(PLAIN), "torchscript-eager", Size(1, 1))
