"""Errors that nobody expected: one sentence for the user, and a file with the details."""

from __future__ import annotations

import errno
import os
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path

from dovetail.cli.invocation import Invocation
from dovetail.printable import one_line, shortened
from dovetail.run_record import RECORD
from dovetail.rundir import ERROR_DETAILS, RESULT, SENSITIVITY
from dovetail.versions import core_versions

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_LONGEST_MESSAGE = 300


def sentence(error: Exception, invocation: Invocation) -> str:
    """Write the details to a file, and say in one sentence what happened, where they are and what to do."""
    unfinished = unfinished_run(invocation)
    places = [*([] if unfinished is None else [unfinished]), Path(tempfile.gettempdir())]
    details = _write_details(error, invocation, places)
    where = f"details are in {details}" if details else "the details could not be written; add --debug to print them"
    next_step = "; continue the run with --resume" if unfinished is not None and _is_shortage(error) else ""
    return f"{_what(error)}; {where}{next_step}"


def unfinished_run(invocation: Invocation) -> Path | None:
    """The run directory of this call, if its run has begun and not ended."""
    run = invocation.output
    if run is None or not (run / RECORD).is_file():
        return None
    return None if any((run / result).exists() for result in (RESULT, SENSITIVITY)) else run


def _what(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError) and _is_shortage(error):
        return f"no space left on the disk{'' if error.filename is None else f' for {one_line(str(error.filename))}'}"
    message = shortened(one_line(str(error).strip()), _LONGEST_MESSAGE)
    return f"unexpected {type(error).__name__}{': ' if message else ''}{message}"


def _is_shortage(error: Exception) -> bool:
    """Whether the same run can succeed later, with more memory or disk space."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _NO_SPACE)


def _write_details(error: Exception, invocation: Invocation, folders: list[Path]) -> Path | None:
    """Write command, versions and traceback into the first folder that accepts a file."""
    header = {"command": invocation.command, "date": datetime.now(UTC).isoformat(timespec="seconds"), **core_versions()}
    lines = [f"{name}: {value}" for name, value in header.items()]
    text = "\n".join([*lines, "", *traceback.format_exception(error)])
    for folder in folders:
        try:
            if folder == invocation.output:
                path = folder / ERROR_DETAILS
            else:
                handle, name = tempfile.mkstemp(prefix="dovetail-error-", suffix=".txt", dir=folder)
                os.close(handle)
                path = Path(name)
            path.write_text(text, errors="backslashreplace")
        except OSError:  # this folder is full or read-only too: the next one
            continue
        return path
    return None
