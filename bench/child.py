"""Run one measurement in a fresh process, possibly with the Python of another environment; it returns JSON in a file.

Only the standard library is imported here, because every environment has to import this module.
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
    """A measurement exited without a result; the message ends with the last lines that it printed."""


def run_child(
    module: str,
    request: Mapping[str, Any],
    python: str | Path = sys.executable,
    *,
    time_limit_s: float | None = None,
) -> dict[str, Any]:
    """Run ``python -m module`` with a request, single-threaded and from the repository's root; return its result."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        result = Path(folder) / "result.json"
        try:
            process = subprocess.run(
                [str(python), "-m", module, json.dumps({**request, "result": str(result)})],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=time_limit_s,
            )
        except subprocess.TimeoutExpired as error:
            raise ChildFailed(f"{module} did not finish within {time_limit_s:g} s") from error
        if process.returncode or not result.exists():
            tail = "\n".join(process.stdout.splitlines()[-_ERROR_LINES:])
            raise ChildFailed(f"{module} exited with code {process.returncode}:\n{tail}")
        return dict(json.loads(result.read_text()))


def run_request(measure: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """In the child: measure what the command line's JSON requests, and write the result with the peak memory added."""
    request = json.loads(sys.argv[1])
    result = {"peak_bytes": 0, **measure(request)}
    result["peak_bytes"] = result["peak_bytes"] or peak_bytes()
    Path(request["result"]).write_text(json.dumps(result))


def peak_bytes() -> int:
    """Return the peak resident memory of this process so far.

    On Linux a process inherits ``ru_maxrss`` from its *parent* across exec, so a small child of a large parent would
    look large; ``VmHWM`` is the same figure, counted from the exec on.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
