"""Windows of an image, as exporters write them: grids of indices (unfold) and Col2Im (fold)."""

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
    """Where windows lie in an image: two numbers each, rows first; ``pads`` are before and after, in that order."""

    image: Pair
    kernel: Pair
    strides: Pair = (1, 1)
    dilations: Pair = (1, 1)
    before: Pair = (0, 0)
    after: Pair = (0, 0)

    @property
    def positions(self) -> Pair:
        """How many windows there are along each axis."""
        rows, columns = (
            (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
            for size, before, after, dilation, kernel, stride in zip(
                self.image, self.before, self.after, self.dilations, self.kernel, self.strides, strict=True
            )
        )
        return rows, columns

    @property
    def tiles(self) -> bool:
        """Whether every pixel is in one window."""
        dense = self.strides == self.kernel and self.dilations == (1, 1) and not any((*self.before, *self.after))
        return dense and all(size % part == 0 for size, part in zip(self.image, self.kernel, strict=True))


def folded_windows(node: ir.Node) -> Windows | None:
    """The windows that a Col2Im adds up; None where they are not known, or the image has not two axes."""
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


def _pair(numbers: Iterable[int]) -> Pair:
    first, second = (int(number) for number in numbers)
    return first, second


def grid_steps(indices: Array) -> tuple[int, ...] | None:
    """The step of every axis of a grid of indices that starts at 0 and counts evenly along each; None for others."""
    if indices.ndim == 0 or indices.size == 0:
        return None
    steps = tuple(int(indices.take(1, axis).flat[0]) if size > 1 else 0 for axis, size in enumerate(indices.shape))
    places = np.indices(indices.shape)
    even = sum(step * place for step, place in zip(steps, places, strict=True))
    return steps if np.array_equal(indices, even) else None
