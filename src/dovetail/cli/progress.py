"""Progress on a terminal: the stage, and a bar with rate and remaining time; elsewhere nothing is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from dovetail.clock import Reporter, silent


class _Rate(ProgressColumn):
    """Samples per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None or not task.total else f"{speed:.1f}/s")


@contextmanager
def showing_progress() -> Iterator[Reporter]:
    """Yield a reporter that shows progress on standard error while the block runs."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield silent
        return
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("read", total=None)
        shown = "read"

        def report(stage: str, done: int, total: int | None) -> None:
            nonlocal shown, task
            if stage != shown:
                progress.remove_task(task)
                task, shown = progress.add_task(stage, total=total), stage
            progress.update(task, completed=done, total=total)

        yield report
