"""The gain of using ``--range mse`` for weights too, in SQNR of the simulation against float.

    python -m bench.weight_ranges

Activation ranges are from mse in both columns; weight ranges are from minmax or from mse. Both use the same held-out
images. Printed are the mean and standard deviation over the images of the worst output's SQNR, and the mean gain with
its standard error.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np

from dovetail import zoo
from dovetail.backend import MODEL
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.float_graph import prepared
from dovetail.model.read import read
from dovetail.model.session import Mode
from dovetail.numerics.metrics import Comparison
from dovetail.plan import qparams
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.qdq.simulation import load_simulation
from dovetail.targets import open_target
from dovetail.verify.run import SessionRun

CASES = (("ort-cpu", "w8a8"), ("qnn-htp:sm8550", "w8a8"), ("qnn-htp:sm8550", "w8a16"), ("xnnpack", "w8a8"))
IMAGES = 128


def main() -> None:
    print(f"{'model':16} {'target':15} {'precision':9} {'weights minmax':>20} {'weights mse':>20}   gain per image")
    for name in zoo.names():
        for target, precision in CASES:
            rows = sqnr_db(name, target, precision)
            gain = rows["mse"] - rows["minmax"]
            cells = [f"{row.mean():.2f} +- {row.std():.2f} dB" for row in rows.values()]
            mean_gain = f"{gain.mean():+.2f} +- {gain.std() / np.sqrt(len(gain)):.2f} dB"
            print(f"{name:16} {target:15} {precision:9} {cells[0]:>20} {cells[1]:>20}   {mean_gain}", flush=True)


def sqnr_db(name: str, target_name: str, precision: str) -> dict[str, np.ndarray]:
    """Weight range method -> SQNR of the simulation's worst float output for each held-out image; compiles nothing."""
    shipped, target = zoo.load(name), open_target(target_name)
    model = prepared(read(shipped.model_path), target)
    samples = [{key: array[i : i + 1] for key, array in shipped.eval().items()} for i in range(IMAGES)]
    by_method = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = open_data(shipped.calib(), input_specs(model))
        stats = collect(model, observed(model, target.table), data, workdir=folder, histograms=True)
        exact = list(SessionRun(model, Mode.FLOAT, folder)(samples))
        floats = [key for key, array in exact[0].items() if array.dtype.kind == "f"]
        for method in ("minmax", "mse"):
            with mock.patch.object(qparams, "_of_constants", return_value=method):
                plan = make_plan(model, target.table, stats, Request(target.table.precisions[precision], "mse"))
            artifacts = target.backend.emit(model, plan, folder)
            simulation = load_simulation(next(a.path for a in artifacts if a.name == MODEL))
            runs = zip(exact, SessionRun(simulation, Mode.EXACT, folder)(samples), strict=True)
            by_method[method] = np.array(
                [min(Comparison.of(expected[k], actual[k]).sqnr_db for k in floats) for expected, actual in runs]
            )
    return by_method


if __name__ == "__main__":
    main()
