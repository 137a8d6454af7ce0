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


def main(text: str) -> int:
    """A process that was started for one call; the end of its input tells it that its parent has ended."""
    request = json.loads(text)
    parent = int(request["parent"])
    watched = detach_input()
    if not killed_with_parent(parent):
        Thread(target=_watch, args=(watched,), daemon=True).start()
    answer_request(request)
    return 0


def answer_request(request: Mapping[str, Any]) -> None:
    """Call ``module:function`` and write what it returned or raised to a file."""
    limit_memory(int(request["memory_limit_bytes"]))
    module_name, _, name = request["function"].partition(":")
    function = getattr(importlib.import_module(module_name), name)
    os.chdir(request["folder"])  # after the import, which a relative PYTHONPATH may serve
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
