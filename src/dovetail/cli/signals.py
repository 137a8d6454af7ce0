"""Signals that end a program end it as Ctrl-C does: children are stopped, and an earlier run is restored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Sent by `kill`, by a job scheduler, or when the terminal is closed.
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt for these signals during the block, unless the caller ignores or handles them."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    replaced = [number for number in _ENDING if in_main_thread and signal.getsignal(number) is signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
