"""What a block is: a function that adds nodes after one tensor, and the rank of the tensor that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from dovetail.sweep.graph_builder import GraphBuilder, Tensor

# The ranks of image-like tensors [N, C, H, W] and of tokens [N, T, C].
IMAGE, TOKENS = 4, 3
Build = Callable[[GraphBuilder, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Block:
    """One kind of block; it may return a tensor of the other rank."""

    name: str
    rank: int
    build: Build


def on_images(build: Build) -> Build:
    """Register a function as a block of the module that defines it, for image-like tensors."""
    build.__dict__["rank"] = IMAGE
    return build


def on_tokens(build: Build) -> Build:
    """Register a function as a block of the module that defines it, for tokens."""
    build.__dict__["rank"] = TOKENS
    return build


def blocks_in(module: ModuleType) -> list[Block]:
    """The blocks that a module defines, in the order of its text."""
    functions = [f for f in vars(module).values() if callable(f) and "rank" in getattr(f, "__dict__", {})]
    own = [f for f in functions if f.__module__ == module.__name__]
    return [Block(f.__name__, f.__dict__["rank"], f) for f in own]
