"""Calibration and exact simulation against the plain float forward: CPU time, one thread, interleaved, one run.

Session creation is left out on all sides; the range search is counted in.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.vit_tiny import pictures, save
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.model.read import read
from dovetail.model.session import Mode, open_session
from dovetail.numerics.methods import RangeMethod
from dovetail.passes.normalize import normalize
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.qdq.simulation import load_simulation
from dovetail.target import W8A8, W8A16
from dovetail.targets import open_target
from dovetail.verify.run import SessionRun

SAMPLES = 64
ROUNDS = 3
TARGETS = {"minmax": 1.4, "percentile": 2.5, "mse": 2.5, "entropy": 2.5, "simulation w8a8": 1.4, "simulation w8a16": 1.4}


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    target = open_target("ort-cpu")
    images = pictures(SAMPLES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = save(folder)
        model = normalize(read(path))[0]
        for each in target.rewrites:
            each(model)
        names = observed(model, target)
        data = open_data({"image": images}, input_specs(model))
        session = open_session(path, Mode.FLOAT)

        def forward() -> None:
            for image in images:
                session.run(None, {"image": image[None]})

        def calibrate(method: str) -> float:
            creation = cpu_seconds(lambda: collect(model, names, open_data({"image": images[:1]}, input_specs(model)), workdir=folder, histograms=False))
            one = cpu_seconds(lambda: session.run(None, {"image": images[:1]}))
            histograms = method != RangeMethod.MINMAX
            held = []
            spent = cpu_seconds(lambda: held.append(collect(model, names, data, workdir=folder, histograms=histograms)))
            spent += cpu_seconds(lambda: make_plan(model, target, held[0], Request(W8A8, method))) if histograms else 0.0
            return spent - (creation - one)

        runs: dict[str, Callable[[], float]] = {m: (lambda m=m: calibrate(m)) for m in RangeMethod}
        stats = collect(model, names, data, workdir=folder, histograms=False)
        for precision in (W8A8, W8A16):
            artifacts = target.emit(model, make_plan(model, target, stats, Request(precision)), folder)
            simulated = SessionRun(load_simulation(artifacts[0].path), Mode.EXACT, folder)
            runs[f"simulation {precision.name}"] = lambda run=simulated: cpu_seconds(
                lambda: sum(1 for _ in run({"image": image[None]} for image in images))
            )
        print(f"ViT-tiny, {SAMPLES} samples, {len(names)} tensors observed, CPU seconds, {ROUNDS} interleaved rounds")
        times: dict[str, list[float]] = {name: [] for name in ("float", *runs)}
        for _ in range(ROUNDS):
            times["float"].append(cpu_seconds(forward))
            for name, run in runs.items():
                times[name].append(run())
        base = float(np.median(times["float"]))
        print(f"{'float forward':22} {base:7.2f} s   1.00x")
        for name in runs:
            median = float(np.median(times[name]))
            print(f"{name:22} {median:7.2f} s  {median / base:5.2f}x   (wanted at most {TARGETS[name]}x)")


if __name__ == "__main__":
    main()
