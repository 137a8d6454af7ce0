"""Expanded blocks (LPBQ) on HTP: the option of the provider, and the encodings that it passed to the compiler.

With the option, the provider turns every symmetric int4 weight in blocks along the input channels of a MatMul or of a
1 x 1 Conv into integer scales times one scale per channel: those that were planned, if they already are such products.
Without it, and where it declines, the layer runs with float16 activations.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from dovetail.encoding import Granularity, QParams
from dovetail.storage import Plan

# In the metadata of a model with expanded blocks.
_MARK = "dovetail.expanded_blocks"
_OPTION = {"enable_block_quant_weight_optimization": "1"}


def mark_expanded_blocks(emitted: ir.Model, plan: Plan) -> None:
    """Record in an emitted model that its plan has expanded blocks; a model without them is not changed."""
    if any(has_expanded_blocks(choice.storage) for choice in plan.edges.values()):
        emitted.metadata_props[_MARK] = "1"


def has_expanded_blocks(storage: object) -> bool:
    """Whether a storage is in expanded blocks."""
    return isinstance(storage, QParams) and storage.encoding.granularity is Granularity.EXPANDED_BLOCK


def block_options(model: Path) -> dict[str, str]:
    """The provider's options for an emitted model: whether it converts blocks to expanded blocks."""
    return dict(_OPTION) if _MARK in ir.load(model).metadata_props else {}
