"""A layer as matrix products: its weight as one matrix per group, and the rows of its input that each is multiplied by.

All arrays have the shape [groups, outputs, inputs] for weights and [groups, rows, inputs] for activations, so that a
linear layer, a convolution with groups and a transposed convolution are rounded by the same code.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from dovetail.encoding import Array

# Elements of one piece of unfolded activations: 32 MiB of float32.
_CHUNK = 1 << 23


@dataclass(frozen=True, slots=True)
class LinearLayout:
    """A weight [outputs, inputs], or [inputs, outputs] if ``inputs_first``.

    ``inputs_before_last``: the inputs are the axis of the activation before the last one, instead of the last one.
    """

    inputs_first: bool = False
    inputs_before_last: bool = False

    @property
    def unfolding(self) -> Hashable:
        """What ``rows`` depends on: layers with the same unfolding have the same moments of the same activation."""
        return self.inputs_before_last

    def matrices(self, weight: Array) -> Array:
        """Weight, or another array of its shape -> [1, outputs, inputs]."""
        return (weight.T if self.inputs_first else weight)[None]

    def weight(self, matrices: Array) -> Array:
        """The inverse of ``matrices``."""
        return np.asarray(matrices[0].T if self.inputs_first else matrices[0])

    def rows(self, activation: Array) -> Iterator[Array]:
        """Activation -> [1, rows, inputs]."""
        last = np.swapaxes(activation, -1, -2) if self.inputs_before_last else activation
        yield last.reshape(1, -1, last.shape[-1])


@dataclass(frozen=True, slots=True)
class ConvLayout:
    """A convolution; ``shape``: of its weight, [outputs, inputs / groups, kernel...].

    ``before``, ``after``: the padding. ``transposed``: the weight is [inputs, outputs / groups, kernel...], and
    ``strides`` are those between the elements of the input, where zeros are inserted; every product then is that of a
    convolution with stride 1 and a reversed kernel.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    groups: int = 1
    transposed: bool = False

    @property
    def unfolding(self) -> Hashable:
        """What ``rows`` depends on: layers with the same unfolding have the same moments of the same activation."""
        return self._kernel, self.strides, self.dilations, self.before, self.after, self.groups, self.transposed

    @property
    def _kernel(self) -> tuple[int, ...]:
        return self.shape[2:]

    def matrices(self, weight: Array) -> Array:
        """Weight, or another array of its shape -> [groups, outputs, inputs]."""
        if not self.transposed:
            return weight.reshape(self.groups, self.shape[0] // self.groups, -1)
        by_group = weight.reshape(self.groups, self.shape[0] // self.groups, *self.shape[1:])
        reversed_kernel = np.flip(by_group, tuple(range(3, by_group.ndim)))
        return reversed_kernel.swapaxes(1, 2).reshape(self.groups, self.shape[1], -1)

    def weight(self, matrices: Array) -> Array:
        """The inverse of ``matrices``."""
        if not self.transposed:
            return matrices.reshape(self.shape)
        inputs = self.shape[0] // self.groups
        by_group = matrices.reshape(self.groups, self.shape[1], inputs, *self._kernel).swapaxes(1, 2)
        return np.flip(by_group, tuple(range(3, by_group.ndim))).reshape(self.shape)

    def rows(self, activation: Array) -> Iterator[Array]:
        """Activation [batch, channels, spatial...] -> pieces [groups, rows, inputs], of bounded size."""
        padded = self._padded(activation)
        extent = [(k - 1) * d + 1 for k, d in zip(self._kernel, self.dilations, strict=True)]
        axes = tuple(range(2, padded.ndim))
        windows = np.lib.stride_tricks.sliding_window_view(padded, extent, axis=axes)
        steps = (1,) * len(extent) if self.transposed else self.strides
        every = tuple(slice(None, None, step) for step in steps)
        windows = windows[:, :, *every, *(slice(None, None, dilation) for dilation in self.dilations)]
        per_line = math.prod(windows.shape) // max(windows.shape[2], 1)
        lines = max(1, _CHUNK // max(per_line, 1))
        for start in range(0, windows.shape[2], lines):
            yield self._unfolded(windows[:, :, start : start + lines])

    def _padded(self, activation: Array) -> Array:
        """The input with zeros inserted, if transposed, and padded; a negative padding crops."""
        if self.transposed:
            sizes = [(n - 1) * s + 1 for n, s in zip(activation.shape[2:], self.strides, strict=True)]
            spread = np.zeros((*activation.shape[:2], *sizes), activation.dtype)
            spread[:, :, *(slice(None, None, step) for step in self.strides)] = activation
            activation = spread
        pads = [(max(b, 0), max(a, 0)) for b, a in zip(self.before, self.after, strict=True)]
        padded = np.pad(activation, [(0, 0), (0, 0), *pads])
        crops = [slice(max(-b, 0), a if a < 0 else None) for b, a in zip(self.before, self.after, strict=True)]
        return padded[:, :, *crops]

    def _unfolded(self, windows: Array) -> Array:
        """[batch, channels, positions..., kernel...] -> [groups, rows, inputs]."""
        rank, per_group = len(self._kernel), windows.shape[1] // self.groups
        grouped = windows.reshape(windows.shape[0], self.groups, per_group, *windows.shape[2:])
        positions, kernel = tuple(range(3, 3 + rank)), tuple(range(3 + rank, 3 + 2 * rank))
        moved = grouped.transpose(1, 0, *positions, 2, *kernel)
        return moved.reshape(self.groups, -1, per_group * math.prod(self._kernel))


Layout = LinearLayout | ConvLayout


def moments_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int]:
    """Shape of a weight -> that of the moments of its input, [groups, inputs, inputs]."""
    groups, _, inputs = layout.matrices(np.broadcast_to(np.float32(0), shape)).shape
    return groups, inputs, inputs


def add_moments(moments: Array, layout: Layout, activation: Array) -> None:
    """Add the second moments of an activation, the sums of x x^T, to ``moments`` [groups, inputs, inputs]."""
    for rows in layout.rows(activation.astype(np.float32, copy=False)):
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks whether the sums are finite
            moments += rows.swapaxes(1, 2) @ rows
