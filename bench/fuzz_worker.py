"""The process of ``bench.fuzz`` that reads damaged models: one line of JSON before and one after every seed."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from bench.fuzz_mutate import Mutant, mutant
from dovetail.api import fit
from dovetail.checking import check_file
from dovetail.errors import BackendError, InputError
from dovetail.targets import open_target

MEMORY_BYTES = 6 << 30
# ONNX Runtime's own, once per process.
_RUNTIME_FILE = ".ses"
TIME_S = {"check": 60, "fit": 300}


class Hang(BaseException):
    """One model took too long; not an Exception, so that no handler of the product hides it."""


def main(arguments: list[str]) -> None:
    """Run the seeds from ``start`` to ``stop`` of ``command`` (check or fit) and append to the file ``lines``."""
    models = pickle.loads(Path(arguments[4]).read_bytes())  # written by the process that started this one
    command, start, stop, lines = arguments[0], int(arguments[1]), int(arguments[2]), Path(arguments[3])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]  # kept, because children set their own limit
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, hard))
    signal.signal(signal.SIGALRM, _hang)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name, lines.open("a") as file:
        folder, scratch = Path(name) / "model", Path(name) / "scratch"
        folder.mkdir()
        scratch.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
        for seed in range(start, stop):
            print(json.dumps({"begin": seed}), file=file, flush=True)
            row = outcome(command, seed, mutant(seed, models), folder, scratch)
            print(json.dumps({"seed": seed, **row}), file=file, flush=True)


def outcome(command: str, seed: int, damaged: Mutant, folder: Path, scratch: Path) -> dict[str, Any]:
    """What came of one model; ``failed`` if it is anything but the product's own answer."""
    path, run = folder / "m.onnx", folder / "run"
    path.write_bytes(damaged.content)
    row: dict[str, Any] = {"outcome": "accepted", "kind": damaged.kind}
    before = _children()
    signal.alarm(TIME_S[command])
    try:
        if command == "check":
            check_file(path, open_target(damaged.target, {}))
        else:
            fit(path, target="ort-cpu", calibration="random", output=run)
    except (InputError, BackendError) as error:
        row["outcome"] = "refused"
        if "\n" in str(error) or not str(error).strip():
            row |= {"outcome": "failed", "why": f"not one sentence: {error}"}
        elif run.exists():
            row |= {"outcome": "failed", "why": f"an error left the run directory: {error}"}
    except Hang:
        row |= {"outcome": "failed", "why": "took too long"}
    except Exception as error:  # noqa: BLE001 - any other exception is what the fuzzer looks for
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "dovetail" in f.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        row |= {"outcome": "failed", "why": f"{type(error).__name__} at {place}: {str(error)[:200]}"}
    finally:
        signal.alarm(0)
    left = [str(p.relative_to(scratch)) for p in scratch.iterdir() if p.name != _RUNTIME_FILE]
    if left and row["outcome"] != "failed":
        row |= {"outcome": "failed", "why": f"left {left[:3]} in the temporary folder"}
    for leftover in (*scratch.iterdir(), *folder.iterdir()):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    if _children() - before:
        row |= {"outcome": "failed", "why": "a child process is still running"}
    return {**row, "source": damaged.source, "target": damaged.target} if row["outcome"] == "failed" else row


def _children() -> set[str]:
    """The numbers of the child processes of this process."""
    tasks = Path("/proc/self/task").iterdir()
    return {number for task in tasks for number in (task / "children").read_text().split()}


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang


if __name__ == "__main__":
    main(sys.argv[1:])
