"""Running a vendor component in a child process: a crash, a hang or a flood of memory takes down only the child.

The child imports one function by name and calls it with plain JSON arguments; its answer comes back through a file,
so that whatever the component prints cannot be mistaken for it.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from dovetail.errors import InputError

# How a component that ran into the memory limit says so, as an exception or as its last words.
_OUT_OF_MEMORY = re.compile(r"MemoryError|std::bad_alloc|[Cc]annot allocate memory|failed to map segment")
_LAST_WORDS_CHARS = 2000
# However many threads ask for one, no more children run at once than there are cores.
_CORES = BoundedSemaphore(os.cpu_count() or 1)


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


def run_child(
    function: str,
    arguments: Mapping[str, Any],
    *,
    who: str = "",
    limits: Limits = DEFAULT_LIMITS,
    folder: Path | None = None,
) -> ChildResult:
    """Call ``module:function`` with keyword arguments in a fresh process.

    ``who``: what messages call it. ``folder``: its working directory, the caller's own by default.
    """
    who = who or function
    with tempfile.TemporaryDirectory(prefix="dovetail-child-") as name:
        answer = Path(name) / "answer.json"
        request = {
            "function": function,
            "arguments": dict(arguments),
            "answer": str(answer),
            "memory_limit_bytes": limits.memory_bytes,
            "folder": None if folder is None else str(folder),
        }
        command = [sys.executable, "-m", "dovetail.targets.child", json.dumps(request)]
        try:
            with _CORES:  # the time limit counts from when the child starts
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=limits.time_s,
                    check=False,
                )
        except subprocess.TimeoutExpired as expired:
            log = (expired.stdout or b"").decode(errors="replace")
            said = f"{who} did not answer within {limits.time_s:g} s and was stopped"
            return ChildResult(None, said, log, False, Limit.TIME)
        log = done.stdout.decode(errors="replace")
        content = json.loads(answer.read_text()) if answer.exists() else {}
    if done.returncode == 0 and "answer" in content:
        return ChildResult(content["answer"], "", log)
    error = content.get("error", "")
    if _OUT_OF_MEMORY.search(error or log[-_LAST_WORDS_CHARS:]):
        said = f"{who} ran out of memory: the limit is {limits.memory_bytes >> 20} MB"
        return ChildResult(None, said, log, False, Limit.MEMORY)
    if error:
        return ChildResult(None, error, log)
    return ChildResult(None, f"{who} {_ending(done.returncode, log)}", log, False)


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


def main(text: str) -> int:
    """The child's side."""
    request = json.loads(text)
    _limit_memory(int(request["memory_limit_bytes"]))
    module_name, _, name = request["function"].partition(":")
    function = getattr(importlib.import_module(module_name), name)
    if request["folder"] is not None:
        os.chdir(request["folder"])  # after the import, which a relative PYTHONPATH may serve
    try:
        content = {"answer": function(**request["arguments"])}
    except InputError as error:
        content = {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever a closed component raises is its answer, said in the parent
        content = {"error": f"{type(error).__name__}: {error}"}
    whole = Path(request["answer"])
    part = whole.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(whole)  # a child that is killed while it writes has not answered
    return 0


def _limit_memory(limit_bytes: int) -> None:
    """Cap the address space, where the system has such a thing."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
