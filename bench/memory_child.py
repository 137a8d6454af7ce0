"""The measured process of ``bench.memory``: one calibration, or one whole run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dovetail
from bench.child import run_request
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.model.read import read
from dovetail.op_support import W8A8
from dovetail.passes.normalize import normalize
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.targets import open_target


def stage(model_path: Path, data: Path, method: str, folder: Path) -> None:
    """Run read, normalize, rewrite, calibrate and plan."""
    target = open_target("ort-cpu")
    model = normalize(read(model_path))[0]
    for rewrite in target.rewrites.graph:
        rewrite(model)
    source = open_data(data, input_specs(model))
    stats = collect(model, observed(model, target.table), source, workdir=folder, histograms=method != "minmax")
    make_plan(model, target.table, stats, Request(W8A8, method))


def fit(model_path: Path, data: Path, method: str, folder: Path) -> None:
    """Run the whole pipeline."""
    dovetail.fit(model_path, target="ort-cpu", calibration=data, output=folder / "run", range=method)


def child(request: dict[str, Any]) -> Mapping[str, Any]:
    """Run what is requested; ``run_request`` adds the only figure, the peak memory of this process."""
    with tempfile.TemporaryDirectory() as folder:
        run = {"stage": stage, "fit": fit}[request["scope"]]
        run(Path(request["model"]), Path(request["data"]), request["method"], Path(folder))
    return {}


if __name__ == "__main__":
    run_request(child)
