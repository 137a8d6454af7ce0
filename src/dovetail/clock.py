"""CPU time per stage, and progress reports to the caller."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Reporter = Callable[[str, int, int | None], None]


def silent(stage: str, done: int, total: int | None) -> None:
    """A reporter that does nothing."""


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
        now = _cpu_seconds()
        if self._open:
            self.timings_s[self._open[-1]] += now - self._since
        self._since = now


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
