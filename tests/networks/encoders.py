"""Image encoders: CLIP, SigLIP, MobileViT and SAM.

Two layers with random weights each, but every operator, rank and window that the real ones have. Their weights keep
the size of what passes through, or the simulation of a deep random network would say nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from tests.networks.exports import exported
from tests.networks.torch_export import Outputs, export_seeded, keep_sizes


def clip() -> nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=16
    )
    return Outputs(CLIPVisionModel(config), ("last_hidden_state", "pooler_output"))


def siglip() -> nn.Module:
    """With the head that pools by attention."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=16
    )
    return Outputs(SiglipVisionModel(config), ("last_hidden_state", "pooler_output"))


def mobilevit() -> nn.Module:
    """The sizes of MobileViT-XXS, with one transformer layer in each stage: a narrower one that is miscompiled is
    tested in test_encoder_parts.py."""
    from transformers import MobileViTConfig, MobileViTModel

    config = MobileViTConfig(
        image_size=64,
        hidden_sizes=[64, 80, 96],
        neck_hidden_sizes=[16, 16, 24, 48, 64, 80, 320],
        mlp_ratio=2.0,
        expand_ratio=2.0,
    )
    model = MobileViTModel(config)
    for stage in model.encoder.layer:
        if hasattr(stage, "transformer"):
            stage.transformer.layer = stage.transformer.layer[:1]
    return Outputs(model, ("last_hidden_state", "pooler_output"))


def sam() -> nn.Module:
    """A layer with windows, which do not fill the image, and a global one; both with relative positions."""
    from transformers import SamVisionConfig, SamVisionModel

    config = SamVisionConfig(
        hidden_size=32,
        output_channels=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=96,
        patch_size=16,
        window_size=4,
        global_attn_indexes=[1],
        mlp_ratio=2.0,
    )
    return Outputs(SamVisionModel(config), ("last_hidden_state",))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, bool]] = {  # how it is made, image size, exported by dynamo
    "clip": (clip, 32, False),
    "siglip": (siglip, 32, True),
    "mobilevit": (mobilevit, 64, False),
    "sam": (sam, 96, False),
}


def encoder(name: str) -> Path:
    """The file of one of them."""
    return exported(_export_network, name)


def _export_network(path: Path, name: str) -> None:
    make, size, dynamo = NETWORKS[name]
    export_seeded(lambda: keep_sizes(make()), (1, 3, size, size), path, dynamo=dynamo)
