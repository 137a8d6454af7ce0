"""One measurement in one fresh process, also under the Python of another environment; the answer comes through a file.

What this imports must be in every environment: the standard library only.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_ERROR_LINES = 12
MEGABYTE = 1 << 20


class ChildFailed(RuntimeError):
    """A measurement that gave no answer, with the end of what it printed."""


def ask(module: str, request: Mapping[str, Any], python: str | Path = sys.executable) -> dict[str, Any]:
    """Run ``python -m module`` on a request and return its answer; single-threaded, from the repository's root."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        answer = Path(folder) / "answer.json"
        done = subprocess.run(
            [str(python), "-m", module, json.dumps({**request, "answer": str(answer)})],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode or not answer.exists():
            tail = "\n".join(done.stdout.splitlines()[-_ERROR_LINES:])
            raise ChildFailed(f"{module} ended with code {done.returncode}:\n{tail}")
        return dict(json.loads(answer.read_text()))


def reply(work: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """The child's side: do the work that the one argument asks for; its peak memory is added to the answer."""
    request = json.loads(sys.argv[1])
    answer = {"peak_bytes": 0, **work(request)}
    answer["peak_bytes"] = answer["peak_bytes"] or peak_bytes()
    Path(request["answer"]).write_text(json.dumps(answer))


def peak_bytes() -> int:
    """The largest resident memory of this process so far.

    Linux carries ``ru_maxrss`` of the *parent* over an exec, so that a small child of a large parent would look large;
    ``VmHWM`` is the same figure, counted from the exec on.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
