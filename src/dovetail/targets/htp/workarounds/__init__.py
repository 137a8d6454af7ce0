"""What the HTP compiler computes wrongly without an error: one module for each, with condition, workaround and rule."""

from __future__ import annotations

from dovetail.targets.htp.workarounds import (
    clip,
    constant_pad,
    conv_transpose,
    conv_transpose_add,
    edge_pad,
    gather,
    group_norm,
    l2_norm,
    long_layer_norm,
    merged_pad,
    padded_channels,
    pooling,
    resize,
    silu,
    softmax,
    softplus,
    zero_vectors,
)
from dovetail.targets.htp.workarounds.workaround import Version, Workaround

# In the order in which their passes run: zero_vectors looks for Pads. constant_pad and merged_pad replace them, or move
# them into convolutions and pools, at which padded_channels and pooling look; pooling writes Pads for edge_pad.
MODULES = (
    zero_vectors,
    clip,
    constant_pad,
    conv_transpose,
    conv_transpose_add,
    gather,
    group_norm,
    l2_norm,
    long_layer_norm,
    merged_pad,
    padded_channels,
    pooling,
    edge_pad,
    resize,
    silu,
    softmax,
    softplus,
)
WORKAROUNDS = tuple(module.WORKAROUND for module in MODULES)


def needed(qairt: Version | None) -> tuple[Workaround, ...]:
    """The workarounds for the miscompilations of a QAIRT version; all if the version is not known."""
    return tuple(workaround for workaround in WORKAROUNDS if workaround.needed_with(qairt))
