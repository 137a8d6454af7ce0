"""``python -m bench.children``: the CPU time of ``fit`` with children forked from a server, and with each started anew.

Every run is a process of its own, without a cache; the two ways take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.cache import timed_fit
from dovetail.targets import child
from dovetail.targets.tool_cache import FOLDER_VARIABLE

CASES = (("xnnpack", "w8a8"), ("xnnpack", "auto"), ("qnn-htp:sm8550", "w8a16"))
_FORKED, _STARTED = "forked", "started"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.children", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of each way; the median is printed (default: 3)")
    parser.add_argument("--one", nargs=3, metavar=("WAY", "TARGET", "PRECISION"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        print(_cpu_seconds(*given.one))
        return
    print(f"{'target':15} {'precision':9} {'forked':>9} {'started':>9}  ratio")
    for target, precision in CASES:
        seconds: dict[str, list[float]] = {_FORKED: [], _STARTED: []}
        for _ in range(given.runs):
            for way, measured in seconds.items():
                measured.append(_in_process(way, target, precision))
        forked, started = (statistics.median(seconds[way]) for way in (_FORKED, _STARTED))
        print(f"{target:15} {precision:9} {forked:7.1f} s {started:7.1f} s  {forked / started:.2f}", flush=True)


def _in_process(way: str, target: str, precision: str) -> float:
    command = [sys.executable, "-m", "bench.children", "--one", way, target, precision]
    with tempfile.TemporaryDirectory(prefix="children-") as cache:
        environment = {**os.environ, FOLDER_VARIABLE: cache}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def _cpu_seconds(way: str, target: str, precision: str) -> float:
    child.HAS_SERVERS = child.HAS_SERVERS and way == _FORKED
    with tempfile.TemporaryDirectory(prefix="children-") as folder:
        seconds, _ = timed_fit(target, precision, Path(folder) / "run")
    return seconds


if __name__ == "__main__":
    main()
