"""Networks with parts that the others lack, small and with random weights: D-FINE, SwinV2 and MobileViTv2.

D-FINE has HGNetV2 (Conv -> Relu into wide Concats) and boxes from distributions, SwinV2 attention by cosine
(L2 normalization), MobileViTv2 separable attention (a Softmax over positions, then sums).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tests.networks.detectors import FIELDS, run_trials
from tests.networks.exports import exported
from tests.networks.images import images
from tests.networks.torch_export import Outputs, export_seeded, keep_sizes

DFINE_SHAPE = (1, 3, 128, 128)


def dfine() -> nn.Module:
    """Three levels, 30 of 336 proposals, two decoder layers."""
    from transformers import DFineConfig, DFineForObjectDetection, HGNetV2Config

    backbone = HGNetV2Config(
        hidden_sizes=[32, 48, 64, 96],
        stem_channels=[3, 16, 16],
        stage_in_channels=[16, 32, 48, 64],
        stage_mid_channels=[16, 16, 24, 32],
        stage_out_channels=[32, 48, 64, 96],
        stage_num_blocks=[1, 1, 1, 1],
        stage_numb_of_layers=[3, 3, 3, 3],
        out_features=["stage2", "stage3", "stage4"],
    )
    config = DFineConfig(
        backbone_config=backbone,
        d_model=64,
        encoder_hidden_dim=64,
        encoder_in_channels=[48, 64, 96],
        encoder_ffn_dim=128,
        encoder_attention_heads=4,
        decoder_in_channels=[64, 64, 64],
        decoder_ffn_dim=128,
        decoder_attention_heads=4,
        decoder_layers=2,
        num_queries=30,
        num_labels=8,
        anchor_image_size=list(DFINE_SHAPE[2:]),
        depth_mult=0.34,
    )
    model = Outputs(DFineForObjectDetection(config), FIELDS)
    run_trials(model, torch.from_numpy(images(DFINE_SHAPE)["x"]))
    return model


def swinv2() -> nn.Module:
    """Two stages of a plain and a shifted layer: cosine attention, positions from a network, norms after."""
    from transformers import Swinv2Config, Swinv2ForImageClassification

    config = Swinv2Config(image_size=64, embed_dim=64, depths=[2, 2], num_heads=[2, 4], window_size=8, num_labels=10)
    return keep_sizes(Outputs(Swinv2ForImageClassification(config), ["logits"]))


def mobilevitv2() -> nn.Module:
    """The sizes of MobileViTv2-0.5, with one attention block in each stage."""
    from transformers import MobileViTV2Config, MobileViTV2Model

    config = MobileViTV2Config(image_size=64, width_multiplier=0.5, n_attn_blocks=[1, 1, 1])
    return keep_sizes(Outputs(MobileViTV2Model(config), ["last_hidden_state", "pooler_output"]))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {  # how it is made, input, by dynamo
    "D-FINE": (dfine, DFINE_SHAPE, False),
    "SwinV2": (swinv2, (1, 3, 64, 64), True),
    "MobileViTv2": (mobilevitv2, (1, 3, 64, 64), True),
}


def unusual(name: str) -> Path:
    """The file of one of them."""
    return exported(_export_network, name)


def _export_network(path: Path, name: str) -> None:
    make, shape, dynamo = NETWORKS[name]
    export_seeded(make, shape, path, dynamo=dynamo)
