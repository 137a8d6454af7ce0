"""What ``--range mse`` brings where it reaches the weights too: SQNR of the simulation against float.

    python -m bench.weight_ranges

Activations by mse in both columns, weights by minmax and by mse; the same held-out images for both, the worst output of
each, its mean over the images with its spread, and the mean of the gain with its standard error.
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
            said = f"{gain.mean():+.2f} +- {gain.std() / np.sqrt(len(gain)):.2f} dB"
            print(f"{name:16} {target:15} {precision:9} {cells[0]:>20} {cells[1]:>20}   {said}", flush=True)


def sqnr_db(name: str, target_name: str, precision: str) -> dict[str, np.ndarray]:
    """Per method for weights and held-out image, the worst float output of the simulation; nothing is compiled."""
    shipped, target = zoo.load(name), open_target(target_name)
    model = prepared(read(shipped.model_path), target)
    samples = [{key: array[i : i + 1] for key, array in shipped.eval().items()} for i in range(IMAGES)]
    found = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
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
            found[method] = np.array([min(Comparison.of(e[k], r[k]).sqnr_db for k in floats) for e, r in runs])
    return found


if __name__ == "__main__":
    main()
