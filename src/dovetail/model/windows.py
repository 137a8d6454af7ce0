"""Windows of an image, as exporters write them: Gather with index grids (unfold) and Col2Im (fold)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.edit import attribute, constant_of, shape_of

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of an image; each field is (rows, columns), and ``before`` and ``after`` are the padding."""

    image: Pair
    kernel: Pair
    strides: Pair = (1, 1)
    dilations: Pair = (1, 1)
    before: Pair = (0, 0)
    after: Pair = (0, 0)

    @property
    def positions(self) -> Pair:
        """The number of windows along each axis."""
        rows, columns = (
            (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
            for size, before, after, dilation, kernel, stride in zip(
                self.image, self.before, self.after, self.dilations, self.kernel, self.strides, strict=True
            )
        )
        return rows, columns

    @property
    def are_adjacent(self) -> bool:
        """Whether the windows are side by side from the first pixel on, so that no pixel is in two of them."""
        return self.strides == self.kernel and self.dilations == (1, 1) and not any((*self.before, *self.after))


def folded_windows(node: ir.Node) -> Windows | None:
    """The windows that a Col2Im sums; None if they are unknown or the image is not two-dimensional."""
    image, kernel = constant_of(node.inputs[1]), constant_of(node.inputs[2])
    if image is None or kernel is None or image.size != 2 or shape_of(node.inputs[0]) is None:
        return None
    pads = attribute(node, "pads", (0, 0, 0, 0))
    return Windows(
        image=_pair(image),
        kernel=_pair(kernel),
        strides=_pair(attribute(node, "strides", (1, 1))),
        dilations=_pair(attribute(node, "dilations", (1, 1))),
        before=_pair(pads[:2]),
        after=_pair(pads[2:]),
    )


def _pair(values: Iterable[int]) -> Pair:
    first, second = (int(value) for value in values)
    return first, second


def grid_steps(indices: Array) -> tuple[int, ...] | None:
    """The step along each axis of an index grid that starts at 0 and is evenly spaced; None for other indices."""
    if indices.ndim == 0 or indices.size == 0:
        return None
    steps = tuple(int(indices.take(1, axis).flat[0]) if size > 1 else 0 for axis, size in enumerate(indices.shape))
    positions = np.indices(indices.shape)
    grid = sum(step * position for step, position in zip(steps, positions, strict=True))
    return steps if np.array_equal(indices, grid) else None
