"""The blocks that graphs are made of: one small function per kind, known by its name."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.sweep.blocks import composites, convolutions, movement, norms, pooling, tokens, windows
from dovetail.sweep.blocks.kind import Block, blocks_in

_MODULES = (convolutions, composites, pooling, movement, norms, windows, tokens)
BLOCKS: Mapping[str, Block] = {block.name: block for module in _MODULES for block in blocks_in(module)}
