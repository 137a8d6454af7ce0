"""Three stages of a Swin-T (2, 2 and 6 layers) with random weights, for images of 112 x 112."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.networks.exports import exported
from tests.networks.torch_export import Outputs, export, keep_sizes

IMAGE_SIZE = 112


def swin_t(seed: int) -> Path:
    """The file of the network with the weights of one seed."""
    return exported(_export_swin_t, seed)


def _export_swin_t(path: Path, seed: int) -> None:
    torch.manual_seed(seed)
    export(keep_sizes(_network()), (1, 3, IMAGE_SIZE, IMAGE_SIZE), path, dynamo=True)


def _network() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=IMAGE_SIZE, embed_dim=96, depths=[2, 2, 6], num_heads=[3, 6, 12], window_size=7, num_labels=10
    )
    return Outputs(SwinForImageClassification(config), ["logits"])
