"""The child's side of a call: limits, the call itself by name, and the answer in a file."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

from dovetail.errors import InputError

# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1


# What a new Python process runs: it imports from where this process does (-P: and not from its working folder before).
_COMMAND = "import json, sys; s = json.loads(sys.argv[1]); sys.path[:] = s['path']; from {} import main; main(s)"


def python_command(module: str, settings: Mapping[str, Any]) -> list[str]:
    """The command of a process that calls ``main`` of a module with settings."""
    content = json.dumps({**settings, "path": import_path()})
    return [sys.executable, "-P", "-c", _COMMAND.format(module), content]


def import_path() -> list[str]:
    """Where this process imports from, wherever the process that is told it works."""
    return [os.path.abspath(entry) for entry in sys.path]


def main(settings: Mapping[str, Any]) -> None:
    """A process that was started for one call; the end of its input tells it that its parent has ended."""
    watched = detach_input()
    if not killed_with_parent(int(settings["parent"])):
        Thread(target=_watch, args=(watched,), daemon=True).start()
    answer_request(json.loads(Path(settings["request"]).read_text()))


def answer_request(request: Mapping[str, Any]) -> None:
    """Call ``module:function`` and write what it returned or raised to a file."""
    limit_memory(int(request["memory_limit_bytes"]))
    module_name, _, name = request["function"].partition(":")
    function = getattr(importlib.import_module(module_name), name)
    os.chdir(request["folder"])
    try:
        content = {"answer": function(**request["arguments"])}
    except InputError as error:
        content = {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever a closed component raises is its answer, reported by the parent
        content = {"error": f"{type(error).__name__}: {error}"}
    whole = Path(request["answer"])
    part = whole.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(whole)  # a child that is killed while it writes has not answered


def detach_input() -> int:
    """Give this process an empty input; returns a descriptor of the input that it had."""
    before = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # a component that reads its input sees that there is none
    os.close(null)
    return before


def killed_with_parent(parent: int) -> bool:
    """Let the kernel kill this process when the thread that started it has ended; False if it does not offer that."""
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        return False
    if os.getppid() != parent:  # it had ended before
        os._exit(1)
    return True


def _watch(input_end: int) -> None:
    """Wait for the end of the input, which the parent holds open as long as it runs, and end this process."""
    os.read(input_end, 1)
    os._exit(1)


def allowed_memory(limit_bytes: int) -> int:
    """The limit, or the smaller one that this process itself has, as set by ``ulimit -v``."""
    try:
        import resource
    except ImportError:  # not on Windows
        return limit_bytes
    own = (limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit != resource.RLIM_INFINITY)
    return min((limit_bytes, *own))


def limit_memory(limit_bytes: int) -> None:
    """Cap the address space, where the system has such a thing."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    limit = allowed_memory(limit_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
