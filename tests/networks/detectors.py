"""RT-DETRv2 and RF-DETR, whole: backbone, query selection by TopK, deformable decoder; boxes and classes out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

from tests.networks.exports import exported
from tests.networks.images import images
from tests.networks.torch_export import Outputs, export_seeded

FIELDS = ("logits", "pred_boxes")
# So wide that the outermost anchors are outside the valid part of the picture, as in a picture of 640 x 640.
RT_SHAPE = (1, 3, 64, 416)
RF_SHAPE = (1, 3, 112, 112)


def rt_detr() -> nn.Module:
    """Three levels, 30 of 546 proposals, two decoder layers."""
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = transformers.RTDetrV2Config(
        backbone_config=backbone,
        d_model=64,
        encoder_hidden_dim=64,
        encoder_in_channels=[32, 48, 64],
        encoder_ffn_dim=128,
        encoder_attention_heads=4,
        decoder_in_channels=[64, 64, 64],
        decoder_ffn_dim=128,
        decoder_attention_heads=4,
        decoder_layers=2,
        num_queries=30,
        num_labels=8,
        anchor_image_size=list(RT_SHAPE[2:]),
    )
    model = Outputs(transformers.RTDetrV2ForObjectDetection(config), FIELDS)
    run_trials(model, torch.from_numpy(images(RT_SHAPE)["x"]))
    return model


def rf_detr() -> nn.Module:
    """Four windows of 16 tokens with a class token each, two of four layers global, 20 of 64 proposals."""
    backbone = transformers.RfDetrDinov2Config(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        image_size=RF_SHAPE[2],
        patch_size=14,
        num_windows=2,
        out_indices=[2, 4],
        use_mask_token=False,
    )
    config = transformers.RfDetrConfig(
        backbone_config=backbone,
        d_model=64,
        decoder_layers=2,
        decoder_ffn_dim=128,
        decoder_self_attention_heads=4,
        decoder_cross_attention_heads=4,
        num_queries=20,
        num_labels=8,
        c2f_num_blocks=1,
        decoder_n_points=2,
    )
    model = Outputs(transformers.RfDetrForObjectDetection(config), FIELDS)
    with torch.no_grad():  # as large as trained ones, or all proposals score alike and the selection is chance
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.weight.normal_(0, layer.weight[0].numel() ** -0.5)
    return model


def run_trials(model: nn.Module, pictures: Tensor) -> None:
    """Give batch normalization the statistics that training would: without them the features fade away."""

    def observe(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        layer.running_mean.copy_(inputs[0].mean((0, 2, 3)))
        layer.running_var.copy_(inputs[0].var((0, 2, 3)) + 1e-3)

    layers = [layer for layer in model.eval().modules() if hasattr(layer, "running_mean")]
    hooks = [layer.register_forward_pre_hook(observe) for layer in layers]
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(1 + 0.1 * torch.randn(layer.weight.shape))
            layer.bias.copy_(0.1 * torch.randn(layer.bias.shape))
        model(pictures)
    for hook in hooks:
        hook.remove()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {  # how it is made, input, by dynamo
    "RT-DETRv2": (rt_detr, RT_SHAPE, False),
    "RF-DETR": (rf_detr, RF_SHAPE, True),
}


def detector(name: str) -> Path:
    """The file of one of them."""
    return exported(_export_network, name)


def _export_network(path: Path, name: str) -> None:
    make, shape, dynamo = NETWORKS[name]
    export_seeded(make, shape, path, dynamo=dynamo)
