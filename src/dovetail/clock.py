"""CPU time per stage, and progress reports to the caller."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock

Reporter = Callable[[str, int, int | None], None]


def silent(stage: str, done: int, total: int | None) -> None:
    """A reporter that does nothing."""


# CPU time that the system does not count for this process or for its children that have ended.
_ALSO: list[Callable[[], float]] = []
_COUNTING = RLock()


def counting() -> RLock:
    """The lock that is held where that time becomes the system's, and while both are read."""
    return _COUNTING


def _begin_in_fork() -> None:
    """Another thread of the process that was forked may have held the lock."""
    global _COUNTING
    _COUNTING = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_fork)


def also_count(seconds: Callable[[], float]) -> None:
    """Count the CPU seconds that this function returns, too."""
    _ALSO.append(seconds)


def cpu_seconds() -> float:
    """The CPU time of this process and of its children so far."""
    with counting():
        also = sum(seconds() for seconds in _ALSO)  # first: it may find a process that has ended
        times = os.times()
    return also + times.user + times.system + times.children_user + times.children_system


class Clock:
    """CPU seconds per stage, child processes included; time in a nested stage counts for that stage only."""

    def __init__(self, report: Reporter = silent) -> None:
        self.timings_s: dict[str, float] = {}
        self._report = report
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the CPU time of the block for this stage."""
        self._settle()
        self._open.append(name)
        self.timings_s.setdefault(name, 0.0)
        self._report(name, 0, None)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    def progress(self, done: int, total: int | None) -> None:
        """Report progress of the stage that is running."""
        self._report(self._open[-1] if self._open else "", done, total)

    def _settle(self) -> None:
        now = cpu_seconds()
        if self._open:
            self.timings_s[self._open[-1]] += now - self._since
        self._since = now
