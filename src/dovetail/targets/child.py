"""Running a vendor component in a child process: a crash, a hang or a flood of memory takes down only the child.

The child imports one function by name and calls it with plain JSON arguments; its answer comes back through a file,
so that whatever the component prints cannot be mistaken for it.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_TIME_LIMIT_S = 600.0
DEFAULT_MEMORY_LIMIT_BYTES = 16 << 30


@dataclass(frozen=True, slots=True)
class ChildResult:
    """What came of a child: its answer, or one sentence that says why there is none; and everything it printed."""

    answer: Mapping[str, Any] | None
    error: str
    log: str


def run_child(
    function: str,
    arguments: Mapping[str, Any],
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
) -> ChildResult:
    """Call ``module:function`` with keyword arguments in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="dovetail-child-") as folder:
        answer = Path(folder) / "answer.json"
        request = {
            "function": function,
            "arguments": dict(arguments),
            "answer": str(answer),
            "memory_limit_bytes": memory_limit_bytes,
        }
        command = [sys.executable, "-m", "dovetail.targets.child", json.dumps(request)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=time_limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            log = (expired.stdout or b"").decode(errors="replace")
            return ChildResult(None, f"{function} did not answer within {time_limit_s:g} s and was stopped", log)
        log = done.stdout.decode(errors="replace")
        if done.returncode < 0:
            return ChildResult(None, f"{function} was killed by signal {-done.returncode}", log)
        if not answer.exists():
            return ChildResult(None, f"{function} ended with code {done.returncode} and no answer", log)
        content = json.loads(answer.read_text())
        return ChildResult(content.get("answer"), content.get("error", ""), log)


def main(text: str) -> int:
    """The child's side."""
    request = json.loads(text)
    _limit_memory(int(request["memory_limit_bytes"]))
    module_name, _, name = request["function"].partition(":")
    function = getattr(importlib.import_module(module_name), name)
    try:
        content = {"answer": function(**request["arguments"])}
    except Exception as error:  # noqa: BLE001 - whatever a closed component raises is its answer, said in the parent
        content = {"error": f"{type(error).__name__}: {error}"}
    Path(request["answer"]).write_text(json.dumps(content))
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
