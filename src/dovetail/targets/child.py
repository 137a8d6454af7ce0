"""Running a vendor component in a child process: a crash, a hang or a flood of memory takes down only the child.

The child imports one function by name and calls it with plain JSON arguments; its answer comes back through a file,
so that whatever the component prints cannot be mistaken for it. Where the system allows it, the child is forked from a
process that has done the imports before (``child_server``).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import BoundedSemaphore, RLock
from typing import Any

from dovetail.clock import also_count
from dovetail.errors import UnfinishedError
from dovetail.targets import child_main
from dovetail.targets.child_main import allowed_memory, python_command
from dovetail.targets.child_servers import HAS_SERVERS, SERVERS

# How a component that ran into the memory limit says so, as an exception or as its last words.
_OUT_OF_MEMORY = re.compile(r"MemoryError|std::bad_alloc|[Cc]annot allocate memory|failed to map segment")
_LAST_WORDS_CHARS = 2000
# However many threads ask for one, no more children run at once than there are cores.
_CORES = BoundedSemaphore(os.cpu_count() or 1)
# How long what a stopped child printed may take to arrive.
_LAST_OUTPUT_S = 5.0


class Limit(StrEnum):
    """What a child may use up."""

    TIME = "time"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class ChildResult:
    """What came of a child: its answer, or one sentence that says why there is none; and everything it printed.

    ``finished``: the function came to its own end, by an answer or by an error that it raised. Where it did not (time,
    memory, a crash), nothing is known of what it would have answered. ``limit``: the limit that it ran into, if any.
    """

    answer: Mapping[str, Any] | None
    error: str
    log: str
    finished: bool = True
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use before it is stopped."""

    time_s: float = 600.0
    memory_bytes: int = 16 << 30


DEFAULT_LIMITS = Limits()


class _Children:
    """The children that are running, so that an interrupted program can stop those that its threads wait for."""

    def __init__(self) -> None:
        self.lock = RLock()  # a signal handler may run while the main thread holds it
        self.running: set[subprocess.Popen[bytes]] = set()
        self.stopping = False


_CHILDREN = _Children()
also_count(SERVERS.cpu_seconds)


def _begin_in_fork() -> None:
    """A process that was forked from this one has no children, and nobody in it holds what other threads held here."""
    global _CORES, _CHILDREN
    _CORES, _CHILDREN = BoundedSemaphore(os.cpu_count() or 1), _Children()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_fork)


def stop_children() -> None:
    """Stop all children, and start no more until ``allow_children`` is called."""
    with _CHILDREN.lock:
        _CHILDREN.stopping = True
        for process in _CHILDREN.running:
            process.kill()
        SERVERS.kill()


def allow_children() -> None:
    """Allow children to be started again."""
    with _CHILDREN.lock:
        _CHILDREN.stopping = False


def run_child(
    function: str,
    arguments: Mapping[str, Any],
    *,
    who: str = "",
    limits: Limits = DEFAULT_LIMITS,
    folder: Path | None = None,
    imports: Sequence[str] = (),
) -> ChildResult:
    """Call ``module:function`` with keyword arguments in a fresh process.

    ``who``: what messages call it. ``folder``: its working directory, the caller's own by default. ``imports``: the
    modules that are imported once for all calls that name the same ones, by default that of the function; as
    ``module:function``, a function that is called once. If they leave threads behind, every call imports them again.
    """
    who = who or function
    memory_bytes = allowed_memory(limits.memory_bytes)
    with tempfile.TemporaryDirectory(prefix="dovetail-child-") as name:
        answer = Path(name) / "answer.json"
        request = Path(name) / "request.json"
        content = {
            "function": function,
            "arguments": dict(arguments),
            "answer": str(answer),
            "memory_limit_bytes": memory_bytes,
            "folder": os.getcwd() if folder is None else str(folder.absolute()),
            "environment": dict(os.environ),
        }
        request.write_text(json.dumps(content))
        with _CORES:  # the time limit counts from when the child starts
            if HAS_SERVERS:
                code, output = _fork(imports or (function.partition(":")[0],), request, limits.time_s)
            else:
                code, output = _start(request, limits.time_s)
        log = output.decode(errors="replace")
        if code is None:
            message = f"{who} did not answer within {limits.time_s:g} s and was stopped"
            return ChildResult(None, message, log, False, Limit.TIME)
        said: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {}
    if code == 0 and "answer" in said:
        return ChildResult(said["answer"], "", log)
    error = said.get("error", "")
    if _OUT_OF_MEMORY.search(error or log[-_LAST_WORDS_CHARS:]):
        message = f"{who} ran out of memory: the limit is {memory_bytes >> 20} MB"
        return ChildResult(None, message, log, False, Limit.MEMORY)
    if error:
        return ChildResult(None, error, log)
    return ChildResult(None, f"{who} {_ending(code, log)}", log, False)


def _fork(imports: Sequence[str], request: Path, time_limit_s: float) -> tuple[int | None, bytes]:
    """Run a child to its end: its exit code, or None if it was stopped after the time limit, and what it printed."""
    with _CHILDREN.lock:
        _require_running()
        call = SERVERS.start(imports, request)
    try:
        return call.wait(time_limit_s)
    finally:
        SERVERS.finish(call)


def _require_running() -> None:
    if _CHILDREN.stopping:
        raise UnfinishedError("the program was interrupted")


def _start(request: Path, time_limit_s: float) -> tuple[int | None, bytes]:
    """The same in a process that is started for it."""
    command = python_command(child_main.__name__, {"request": str(request), "parent": os.getpid()})
    read_end, write_end = os.pipe()  # a child sees the end of its input when this process has ended
    try:
        with _CHILDREN.lock:
            _require_running()
            process = subprocess.Popen(command, stdin=read_end, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            _CHILDREN.running.add(process)
        try:
            output, _ = process.communicate(timeout=time_limit_s)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            process.kill()
            return None, _last_output(process)
        finally:
            process.kill()  # only after an interruption is it still running
            process.wait()
            with _CHILDREN.lock:
                _CHILDREN.running.discard(process)
    finally:
        os.close(read_end)
        os.close(write_end)


def _last_output(process: subprocess.Popen[bytes]) -> bytes:
    """What a stopped child has printed; a process that it started may keep the output open."""
    try:
        return process.communicate(timeout=_LAST_OUTPUT_S)[0]
    except subprocess.TimeoutExpired as expired:
        return expired.stdout or b""


def _ending(code: int, log: str) -> str:
    """How a process without an answer ended."""
    if code >= 0:
        last = log.strip().rpartition("\n")[2]
        return f"ended with code {code} and no answer" + (f"; its last words: {last}" if last else "")
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-code}{name}"
