"""What tests ask about other processes, on Linux."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path


def is_running(pid: int) -> bool:
    """A process that has ended and that nobody waited for does not count."""
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def calls_of(pid: int, module: str) -> list[int]:
    """The running calls of a process, forked from its server that has imported a module."""
    servers = [child for child in children_of(pid) if serves(child, module)]
    return [call for server in servers for call in children_of(server)]


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def children_of(pid: int) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*"):
        child = int(path.name)
        try:
            state, parent = _stat(child)
        except OSError:  # it has ended
            continue
        if int(parent) == pid and state != "Z":
            yield child


def _stat(pid: int) -> tuple[str, str]:
    """The state of a process, and its parent."""
    state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return state, parent


def serves(pid: int, module: str) -> bool:
    """Whether a process is the server of calls for which a module was imported."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended
        return False
    return "dovetail.targets.child_server " in command and f'"{module}"' in command
