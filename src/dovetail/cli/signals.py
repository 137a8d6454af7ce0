"""Signals that end a program end it as Ctrl-C does: children are stopped, and an earlier run is restored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dovetail.targets.child import allow_children, stop_children

# Sent by Ctrl-C, by `kill` or a job scheduler, and when the terminal is closed.
_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Stop children and raise KeyboardInterrupt for these signals, unless the caller ignores or handles them."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in _ENDING} if in_main_thread else {}
    replaced = {number: handler for number, handler in before.items() if handler in defaults}
    for number in replaced:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        allow_children()
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    stop_children()
    raise KeyboardInterrupt
