"""Progress on standard error: on a terminal a line that is updated, elsewhere a line of text every 10 seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.text import Text

from dovetail.clock import Reporter
from dovetail.printable import elapsed_text

INTERVAL_S = 10.0
# The numbered stages, in order; each with the parts that are reported while it runs and what they do.
STAGES: tuple[dict[str, str], ...] = (
    {"read": "reading the model and the data", "probe": "looking for the target's compiler"},
    {"normalize": "normalizing the graph", "split": "splitting off operators that the target does not support"},
    {"rewrite": "rewriting the graph for the target", "try_float": "running the float model once"},
    {"calibrate": "calibrating", "held_out": "reading the held-out data"},
    {"check_normalized": "comparing the normalized graph with the original model"},
    {
        "build": "planning and emitting",
        "decide": "trying alternatives",
        "compile": "compiling with the vendor's compiler",
        "verify": "running and comparing with float",
        "locate": "locating the first tensor that differs on the target",
    },
    {"check": "checking the rules of the target"},
    {"baselines": "comparing with baselines", "device": "writing the device folder"},
    {"report": "writing the result"},
)
# The stages of ``dovetail sensitivity``: the first ones are the same.
SENSITIVITY_STAGES: tuple[dict[str, str], ...] = (
    *STAGES[:4],
    {"estimate": "estimating what each part costs", "sensitivity": "quantizing each part alone"},
    {"verify": "running the emitted graph", "metric": "computing the metric with each part quantized"},
)
# The stages of ``dovetail bisect``.
BISECT_STAGES: tuple[dict[str, str], ...] = (
    {"read": "reading the model, and running it"},
    {"whole": "compiling the whole model", "bisect": "compiling parts of the model"},
    {"attempt": "trying what makes the part right"},
)


class _State:
    """What a run is doing now; the stage number never decreases."""

    def __init__(self, stages: tuple[dict[str, str], ...] = STAGES) -> None:
        self._numbers = {part: number for number, stage in enumerate(stages, 1) for part in stage}
        self._texts = {part: text for stage in stages for part, text in stage.items()}
        self._stages = len(stages)
        self._start_s = time.monotonic()
        self._lock = Lock()
        self._part, self._number, self._done = "read", 1, 0
        self._total: int | None = None

    def set(self, part: str, done: int, total: int | None) -> None:
        with self._lock:
            self._number = max(self._number, self._numbers.get(part, 0))
            self._part, self._done, self._total = part, done, total

    def counts(self) -> tuple[int, int | None]:
        with self._lock:
            return self._done, self._total

    def stage(self) -> str:
        return f"stage {self._number} of {self._stages}"

    def doing(self) -> str:
        with self._lock:
            count = f", {self._done} of {self._total}" if self._total else f", {self._done}" if self._done else ""
            return f"{self._texts.get(self._part, self._part)}{count}"

    def elapsed(self) -> str:
        return elapsed_text(time.monotonic() - self._start_s)


@contextmanager
def showing_progress(stages: tuple[dict[str, str], ...] = STAGES) -> Iterator[Reporter]:
    """Yield a reporter that shows progress on standard error while the block runs."""
    console = Console(stderr=True)
    state = _State(stages)
    with _on_terminal(console, state) if console.is_terminal else _as_lines(console, state):
        yield state.set


@contextmanager
def _as_lines(console: Console, state: _State) -> Iterator[None]:
    """Print a line every 10 seconds, from a thread of its own."""
    ended = Event()

    def print_lines() -> None:
        while not ended.wait(INTERVAL_S):
            console.out(f"dovetail: {state.stage()}, {state.elapsed()}: {state.doing()}", highlight=False)

    thread = Thread(target=print_lines, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Line(ProgressColumn):
    """The whole state as text, cut to the width of the terminal by rich."""

    def __init__(self, state: _State) -> None:
        super().__init__()
        self._state = state

    def render(self, task: Task) -> Text:
        text = f"{self._state.stage()}  {self._state.elapsed()}  {self._state.doing()}"
        return Text(text, no_wrap=True, overflow="ellipsis")


class _Bar(BarColumn):
    """A bar for stages whose length is known; for others it only moves."""

    def __init__(self, state: _State) -> None:
        super().__init__(bar_width=14)
        self._state = state

    def render(self, task: Task) -> ProgressBar:
        done, total = self._state.counts()
        task.completed, task.total = done, total
        return super().render(task)


@contextmanager
def _on_terminal(console: Console, state: _State) -> Iterator[None]:
    with Progress(_Bar(state), _Line(state), console=console, transient=True) as progress:
        progress.add_task("", total=None)
        yield
