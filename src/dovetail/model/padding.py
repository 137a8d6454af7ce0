"""What a Pad adds: how many elements at both ends of every axis, and their value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.edit import constant_of, scalar_of


@dataclass(frozen=True, slots=True, eq=False)
class Padding:
    """``amounts``: [2, rank], before and after every axis, negative where elements are removed."""

    amounts: Array
    value: float


def padding_of(node: ir.Node) -> Padding | None:
    """The padding of a Pad with mode constant; None if it is not known before the model runs."""
    source, pads, value, axes = (*node.inputs, None, None)[:4]
    amounts, listed = constant_of(pads), constant_of(axes)
    if source is None or source.shape is None or amounts is None or (axes is not None and listed is None):
        return None
    fill = 0.0 if value is None else scalar_of(value)
    if fill is None:
        return None
    rank = len(source.shape)
    every = np.zeros((2, rank), np.int64)
    every[:, np.arange(rank) if listed is None else listed % rank] = amounts.reshape(2, -1)
    return Padding(every, fill)
