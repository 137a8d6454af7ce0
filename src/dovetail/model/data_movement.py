"""Operators that only select and move elements of their first input, by their ONNX definition."""

from __future__ import annotations

DATA_MOVEMENT_OPS = (
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "Identity",
    "MaxPool",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
)
