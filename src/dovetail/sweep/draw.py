"""Random choices and arrays that are the same on every platform and with every version of Python and NumPy.

Python guarantees the stream of ``random.Random``, and NumPy that of a bit generator; the distributions that NumPy
derives from it may change. So arrays are computed from raw bits, with operations that IEEE 754 rounds exactly.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from dovetail.encoding import Array

T = TypeVar("T")
_WORDS = 4  # 16-bit words per raw number, whose sum is nearly normal
_CENTER = _WORDS * (2**16 - 1) / 2
_STD = (_WORDS * (2**32 - 1) / 12) ** 0.5


class Draw:
    """A source of random choices; the same key gives the same choices."""

    def __init__(self, key: str) -> None:
        self._random = random.Random(key)

    def choice(self, items: Sequence[T]) -> T:
        """One of the items; repeat an item to make it more likely."""
        return items[int(self._random.random() * len(items))]

    def between(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``."""
        return low + int(self._random.random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Several different items, in random order."""
        rest, taken = list(items), []
        for _ in range(min(count, len(rest))):
            taken.append(rest.pop(self.between(0, len(rest) - 1)))
        return taken

    def normal(self, *shape: int, std: float = 1.0, mean: float = 0.0) -> Array:
        """Nearly normal float32 numbers, at most 3.5 standard deviations from the mean."""
        count = int(np.prod(shape, dtype=np.int64))
        raw = np.random.PCG64(self._random.getrandbits(63)).random_raw(count)
        words = raw.view(np.uint16).reshape(count, _WORDS).astype(np.int64)
        standard = (words.sum(axis=1) - _CENTER) / _STD
        values: Array = (standard * std + mean).astype(np.float32).reshape(shape)
        return values

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        """Uniform float32 numbers."""
        count = int(np.prod(shape, dtype=np.int64))
        raw = np.random.PCG64(self._random.getrandbits(63)).random_raw(count)
        share = (raw >> np.uint64(40)).astype(np.float64) / 2**24
        return (low + share * (high - low)).astype(np.float32).reshape(shape)
