"""CPU and wall seconds of ``dovetail check`` on a vision transformer of 1 000 nodes, float and quantized, per target.

    python -m bench.check_time

*whole* is the command as a user runs it, in a fresh process; *check* is the check alone in another fresh process,
after the imports and after the check of a model of one node.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx
from tests.networks.vit_tiny import save

from bench.child import ROOT, run_child
from dovetail.model.read import read
from dovetail.passes.normalize import normalize
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.stats import DataInfo, Stats, TensorStats
from dovetail.targets import open_target

# Seconds; printed, not enforced.
GOAL_S = 2.0
TARGETS = ("ort-cpu", "qnn-htp:sm8550", "qairt:2.33/v75", "xnnpack", "tensorrt:sm89")
# Layers of a ViT-tiny with 1 000 nodes as exported, and of one with 1 000 nodes when Q/DQ pairs are counted.
LAYERS, LAYERS_WITH_PAIRS = 31, 10


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=LAYERS, help="layers of the ViT-tiny")
    parser.add_argument("--few-layers", type=int, default=LAYERS_WITH_PAIRS, help="of one that is quantized only")
    parser.add_argument("--targets", nargs="*", default=TARGETS)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        exported = {layers: saved(folder / str(layers), layers) for layers in (options.layers, options.few_layers)}
        models = {
            f"{len(onnx.load(path).graph.node)} {kind}": path
            for kind, path in (
                ("float", exported[options.layers]),
                ("QDQ", quantized(exported[options.few_layers])),
                ("QDQ", quantized(exported[options.layers])),
            )
        }
        print(f"{'target':16}{'nodes':12}{'whole: CPU':>12}{'wall':>8}{'check: CPU':>12}{'wall':>8}   goal {GOAL_S} s")
        for target in options.targets:
            for kind, path in models.items():
                cpu_s, wall_s = whole_process_s(path, target)
                alone = run_child("bench.check_time_child", {"model": str(path), "target": target})
                row = f"{cpu_s:11.2f}s{wall_s:7.2f}s{alone['cpu_s']:11.2f}s{alone['wall_s']:7.2f}s"
                print(f"{target:16}{kind:12}{row}   {alone['findings']} findings", flush=True)


def saved(folder: Path, layers: int) -> Path:
    """Write the float model into a folder of its own."""
    folder.mkdir()
    return save(folder, layers)


def quantized(path: Path) -> Path:
    """Write the model in w8a8 for ort-cpu, with invented ranges: a pair on every edge of an 8-bit kernel."""
    target = open_target("ort-cpu")
    model, _ = normalize(read(path))
    stats = Stats({name: TensorStats(-1.0, 2.0) for name in observed(model, target.table)}, DataInfo("", 1, ""))
    plan = make_plan(model, target.table, stats, Request(target.table.precisions["w8a8"]))
    folder = path.parent / "quantized"
    folder.mkdir()
    return target.backend.emit(model, plan, folder)[0].path


def whole_process_s(model: Path, target: str) -> tuple[float, float]:
    """CPU and wall seconds of the command, with the imports and the start of Python."""
    command = [sys.executable, "-m", "dovetail.cli", "check", str(model), "--target", target]
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # 1: a finding is an error
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start


if __name__ == "__main__":
    main()
