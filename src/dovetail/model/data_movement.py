"""Data-movement operators: their output elements are all elements of their first input.

Input and output can therefore have the same scale and zero point.
"""

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
