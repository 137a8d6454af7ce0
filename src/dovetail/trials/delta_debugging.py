"""Delta debugging: the smallest part of something that still fails.

The algorithm is *ddmin* (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002): chunks of
the elements are tried alone and left out, first large ones, then small ones. It knows nothing about what the elements
are, so it serves nodes of a graph that a compiler rejects as well as those that it computes incorrectly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Reduction(Generic[Item]):
    """What is left of the elements, in their order, and how many sets were tried.

    ``is_minimal``: the part does not fail without any one of its elements; not known if the calls were used up.
    """

    elements: tuple[Item, ...]
    calls: int
    is_minimal: bool


def smallest_failing(
    elements: Sequence[Item],
    fails: Callable[[tuple[Item, ...]], bool],
    *,
    max_calls: int,
    try_first: Iterable[Sequence[Item]] = (),
    at_once: int = 1,
) -> Reduction[Item]:
    """A small part of the elements that fails, in at most ``max_calls`` calls of ``fails``; deterministic.

    All elements together must fail: that is not tried. The elements are distinct, and ``fails`` gets them in their
    order, each set at most once. ``try_first``: parts that are likely to fail, such as those that failed elsewhere; the
    search goes on from the first of them that does. ``at_once``: how many parts are tried at the same time, in threads.
    """
    search = _Search(tuple(elements), fails, max_calls, at_once)
    try:
        search.accept_first(try_first)
        search.run()
    except _CallsUsedUpError:
        return Reduction(search.current, search.calls, is_minimal=False)
    return Reduction(search.current, search.calls, is_minimal=True)


class _CallsUsedUpError(Exception):
    """No more calls are allowed."""


class _Search(Generic[Item]):
    """The smallest failing part so far, and the answers for the sets that were tried."""

    def __init__(
        self, elements: tuple[Item, ...], fails: Callable[[tuple[Item, ...]], bool], max_calls: int, at_once: int
    ) -> None:
        self.current, self.calls = elements, 0
        self._fails, self._max_calls, self._at_once = fails, max_calls, at_once
        self._answers: dict[tuple[Item, ...], bool] = {}

    def run(self) -> None:
        """Divide the current part into more and more chunks, until each chunk is one element that cannot be left
        out."""
        count = 2
        while len(self.current) >= 2:
            chunks = _chunks(self.current, count)
            rests = [[element for element in self.current if element not in chunk] for chunk in chunks]
            if self.accept_first(chunks):
                count = 2
            elif count > 2 and self.accept_first(rests):
                count = max(count - 1, 2)
            elif count == len(self.current):
                return
            else:
                count = min(2 * count, len(self.current))

    def accept_first(self, parts: Iterable[Iterable[Item]]) -> bool:
        """Whether one of these parts fails; if so, the first one that does becomes the current one."""
        candidates = [self._candidate(part) for part in parts]
        smaller = [candidate for candidate in candidates if candidate and candidate != self.current]
        for start in range(0, len(smaller), self._at_once):
            batch = smaller[start : start + self._at_once]
            self._try(batch)
            failing = next((candidate for candidate in batch if self._answers.get(candidate)), None)
            if failing is not None:
                self.current = failing
                return True
        return False

    def _candidate(self, part: Iterable[Item]) -> tuple[Item, ...]:
        wanted = set(part)
        return tuple(element for element in self.current if element in wanted)

    def _try(self, candidates: Iterable[tuple[Item, ...]]) -> None:
        """Try those that were not tried before, as many as are still allowed."""
        new = [candidate for candidate in dict.fromkeys(candidates) if candidate not in self._answers]
        allowed = new[: self._max_calls - self.calls]
        self.calls += len(allowed)
        answers = dict(zip(allowed, self._each(allowed), strict=True))
        self._answers |= answers
        if len(allowed) < len(new) and not any(answers.values()):
            raise _CallsUsedUpError

    def _each(self, candidates: list[tuple[Item, ...]]) -> list[bool]:
        if len(candidates) < 2:
            return list(map(self._fails, candidates))
        with ThreadPoolExecutor(len(candidates)) as pool:
            return list(pool.map(self._fails, candidates))


def _chunks(elements: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """Divide a sequence into ``count`` chunks of nearly the same length."""
    bounds = [len(elements) * index // count for index in range(count + 1)]
    return [elements[start:stop] for start, stop in itertools.pairwise(bounds)]
