"""Writing the page of a run directory."""

from __future__ import annotations

from pathlib import Path

from dovetail.errors import InputError
from dovetail.model.write import write_whole
from dovetail.report.page.page import render_page
from dovetail.report.result import Result, load_result
from dovetail.rundir import PAGE, RESULT, SENSITIVITY

# The page that compares a run with another one, in the directory of the first.
COMPARISON = "comparison.html"


def write_page(run: Path, other: Path | None = None, output: Path | None = None) -> Path:
    """Write the page about a run, or about a run compared with another one, and return its path."""
    first = read_run(run)
    second = None if other is None else read_run(other)
    path = output or (run if run.is_dir() else run.parent) / (PAGE if second is None else COMPARISON)
    try:
        write_whole(path, render_page(first, second).encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from error
    return path


def read_run(run: Path) -> Result:
    """Read the result of a run directory, or a result file."""
    path = run / RESULT if run.is_dir() else run
    if not run.exists():
        raise InputError(f"{run} does not exist; expected the run directory of dovetail fit, repair or demo")
    if (run / SENSITIVITY).is_file() and not path.is_file():
        raise InputError(f"{run} is a run of dovetail sensitivity; expected one of dovetail fit, repair or demo")
    if not path.is_file():
        raise InputError(
            f"{run} has no {RESULT}; expected the run directory of a finished dovetail fit, repair or demo"
        )
    return load_result(path)
