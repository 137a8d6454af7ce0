"""CPU time of calibration and of exact simulation, relative to float inference: one thread, interleaved, one run.

Session creation is excluded everywhere; the range search is included.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
from tests.networks.vit_tiny import pictures, save

from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.model.observe import ObservedRun
from dovetail.model.read import read
from dovetail.model.session import Mode, open_session
from dovetail.numerics.methods import RangeMethod
from dovetail.op_support import W8A8, W8A16
from dovetail.passes.normalize import normalize
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.qdq.simulation import load_simulation
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.verify.run import SessionRun

# Label of a measurement -> the highest ratio to float inference that we aim for; printed, not enforced.
GOALS = dict.fromkeys(RangeMethod, 2.5) | {"minmax": 1.4, "simulation w8a8": 1.4, "simulation w8a16": 1.4}


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


class Bench:
    """One model on one target, with the measurements that are compared."""

    def __init__(self, path: Path, samples: int, folder: Path) -> None:
        self.target: Target = open_target("ort-cpu")
        self.folder = folder
        self.images = pictures(samples)
        self.model: ir.Model = normalize(read(path))[0]
        for rewrite in self.target.rewrites.graph:
            rewrite(self.model)
        self.names = observed(self.model, self.target.table)
        self.data = open_data({"image": self.images}, input_specs(self.model))
        self.session = open_session(path, Mode.FLOAT)

    def forward(self) -> float:
        feeds = [{"image": image[None]} for image in self.images]
        return cpu_seconds(lambda: [self.session.run(None, feed) for feed in feeds])

    def calibrate(self, method: str) -> float:
        """CPU seconds for statistics and, except for minmax, the range search; session creation is subtracted."""
        histograms = method != RangeMethod.MINMAX
        creation = cpu_seconds(lambda: ObservedRun(self.model, self.names, self.folder))
        start = time.process_time()
        stats = collect(self.model, self.names, self.data, workdir=self.folder, histograms=histograms)
        if histograms:
            make_plan(self.model, self.target.table, stats, Request(W8A8, method))
        return time.process_time() - start - creation

    def simulations(self) -> dict[str, Callable[[], float]]:
        """Label -> a function that runs the exact simulation over all images and returns its CPU seconds."""
        stats = collect(self.model, self.names, self.data, workdir=self.folder, histograms=False)
        runs = {}
        for precision in (W8A8, W8A16):
            plan = make_plan(self.model, self.target.table, stats, Request(precision))
            artifacts = self.target.backend.emit(self.model, plan, self.folder)
            runs[f"simulation {precision.name}"] = SessionRun(
                load_simulation(artifacts[0].path), Mode.EXACT, self.folder
            )
        feeds = [{"image": image[None]} for image in self.images]
        return {name: (lambda run=run: cpu_seconds(lambda: list(run(feeds)))) for name, run in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=64, help="number of calibration samples")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; medians are printed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(save(Path(name)), arguments.samples, Path(name))
        runs = {method: (lambda m=method: bench.calibrate(m)) for method in RangeMethod} | bench.simulations()
        times: dict[str, list[float]] = {label: [] for label in ("float", *runs)}
        for _ in range(arguments.rounds):
            times["float"].append(bench.forward())
            for label, run in runs.items():
                times[label].append(run())
        base = statistics.median(times["float"])
        print(f"ViT-tiny, {arguments.samples} samples, {len(bench.names)} tensors observed, CPU seconds")
        print(f"{'float inference':20}{base:8.2f} s  1.00x")
        for label in runs:
            median = statistics.median(times[label])
            print(f"{label:20}{median:8.2f} s {median / base:5.2f}x   (goal: at most {GOALS[label]}x)")


if __name__ == "__main__":
    main()
