"""Dovetail, one of the quantizers compared: from the float file to the emitted QDQ model for target ``ort-cpu``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.child import run_request
from bench.peer import Feeds, Stopwatch, measure
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.model.observe import ObservedRun
from dovetail.model.read import read
from dovetail.op_support import W8A8
from dovetail.passes.normalize import normalize
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.targets import open_target
from dovetail.versions import core_versions


def quantize(request: Mapping[str, Any], feeds: Feeds, calibration: Stopwatch) -> None:
    """Quantize one file; calibration is timed as statistics plus range search, with session creation subtracted."""
    output = Path(request["output"])
    method = request["method"]
    target = open_target("ort-cpu")
    model = normalize(read(Path(request["model"])))[0]
    for rewrite in target.rewrites.graph:
        rewrite(model)
    names = observed(model, target.table)
    data = open_data(request["data"], input_specs(model))
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        ObservedRun(model, names, Path(folder))
        creation = time.process_time() - start
        with calibration:
            stats = collect(model, names, data, workdir=Path(folder), histograms=method != "minmax")
            plan = make_plan(model, target.table, stats, Request(W8A8, method))
        calibration.seconds -= creation
        artifacts = target.backend.emit(model, plan, Path(folder))
        output.write_bytes(artifacts[0].path.read_bytes())


if __name__ == "__main__":
    run_request(lambda request: measure(request, quantize, core_versions()["dovetail"]))
