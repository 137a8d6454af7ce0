"""Damaged models through ``check`` and ``fit``: every one is accepted or refused in one sentence, nothing crashes.

    python -m bench.fuzz check --count 20000 --state fuzz_check.json     # continues where the last run stopped
    python -m bench.fuzz fit --count 500 --state fuzz_fit.json
    python -m bench.fuzz check --seed 4711                               # one model, again

The seeds are 0, 1, 2, ... or count from ``--start``; in one commit the same seed is the same model. The state file has
the counts over all runs and the failures; failed seeds are printed, and the exit code is 1 if there are any. The
models are read in a child process, so that a crash is counted and the rest still runs.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.child import ROOT
from bench.fuzz_mutate import small_models

BATCH = 250


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("check", "fit"))
    parser.add_argument("--count", type=int, default=1000, help="how many seeds in total, over all runs")
    parser.add_argument("--start", type=int, default=0, help="the first seed, if there is no state of earlier runs")
    parser.add_argument("--state", type=Path, help="file with the counts of earlier runs, which are continued")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--seed", type=int, help="run this seed only, and print what comes of it")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        with sources() as file:
            rows = run_batch(options.command, options.seed, options.seed + 1, file)
        print(json.dumps(rows[0]))
        return int(rows[0]["outcome"] == "failed")
    state = read_state(options.state, options.command, options.start)
    until = time.monotonic() + options.seconds
    with sources() as file:
        while state["next"] < options.start + options.count and time.monotonic() < until:
            stop = min(state["next"] + BATCH, options.start + options.count)
            add(state, run_batch(options.command, state["next"], stop, file))
            state["next"] = stop
            if options.state is not None:
                options.state.write_text(json.dumps(state, indent=1))
            print(f"{options.command}: seeds {options.start} to {stop - 1}: {state['counts']}", flush=True)
    for row in state["failures"]:
        print(f"  seed {row['seed']} ({row.get('source', '')}, {row.get('target', '')}): {row['why']}")
    return int(bool(state["failures"]))


@contextmanager
def sources() -> Iterator[Path]:
    """A file with the models that are damaged, for the child processes: collecting ONNX's own takes seconds."""
    with tempfile.TemporaryDirectory(prefix="fuzz-sources-") as name:
        file = Path(name) / "sources.pickle"
        file.write_bytes(pickle.dumps(small_models()))
        yield file


def read_state(path: Path | None, command: str, start: int = 0) -> dict[str, Any]:
    """The state of earlier runs; one of another command is refused."""
    if path is None or not path.exists():
        return {"command": command, "next": start, "counts": {}, "failures": []}
    state: dict[str, Any] = json.loads(path.read_text())
    if state["command"] != command:
        raise SystemExit(f"{path}: is the state of `fuzz {state['command']}`, not of `fuzz {command}`")
    return state


def add(state: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Add the outcomes of a batch to the counts."""
    counts = Counter(state["counts"])
    counts.update(f"{row.get('kind', '?')} {row['outcome']}" for row in rows)
    state["counts"] = dict(sorted(counts.items()))
    state["failures"] += [row for row in rows if row["outcome"] == "failed"]


def run_batch(command: str, start: int, stop: int, models: Path) -> list[dict[str, Any]]:
    """The outcome of every seed; a process that ends early counts for the seed that it was at.

    ``models``: the file of ``sources``.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-driver-") as name:
        lines = Path(name) / "rows.jsonl"
        while start < stop:
            lines.write_text("")
            worker = [
                sys.executable,
                "-m",
                "bench.fuzz_worker",
                command,
                str(start),
                str(stop),
                str(lines),
                str(models),
            ]
            log = Path(name) / "log"
            with log.open("wb") as file:
                code = subprocess.run(worker, cwd=ROOT, stdout=file, stderr=file, check=False).returncode
            read = [json.loads(line) for line in lines.read_text().splitlines()]
            rows += [row for row in read if "seed" in row]
            begun = [row["begin"] for row in read if "begin" in row]
            if not begun:
                raise SystemExit(f"the worker did not start:\n{log.read_text(errors='replace')[-2000:]}")
            if len(begun) > sum("seed" in row for row in read):
                rows.append({"seed": begun[-1], "outcome": "failed", "why": f"the process ended with code {code}"})
            start = begun[-1] + 1
    return rows


if __name__ == "__main__":
    sys.exit(main())
