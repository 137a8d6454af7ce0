"""The shipped detector with a float16 island that ``--precision auto`` finds, for QAIRT 2.33 and on the HTP compiler.

``python -m bench.qairt_auto``: what is predicted for every way, and what the real compiler and its emulator make of the
very same QDQ model and plan (its output is read back tensor by tensor).
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from tests.networks.mixed_detector import first_sample, write_detector

import dovetail
from dovetail.backend import Artifact
from dovetail.encoding import DType
from dovetail.finding import WHOLE_MODEL
from dovetail.model.session import Mode, open_session, run_session
from dovetail.numerics.metrics import sqnr_db
from dovetail.plan.rows import read_plan
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qnn_htp.compile import compile_model
from dovetail.targets.qnn_htp.options import read_options
from dovetail.targets.qnn_htp.target import read_back, run

TARGET, CHIP = "qairt:2.33/v75", "sm8650"
LEAST_DB = 45


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as name:
        folder = Path(name)
        model, data = write_detector(folder, samples=8, padded_boxes=True)
        fitted = folder / "run"
        result = dovetail.fit(
            model, target=TARGET, calibration=data, output=fitted, precision="auto", min_sqnr=LEAST_DB
        )
        print(next(d.taken for d in result.decisions if d.knob == "mixed" and d.place == WHOLE_MODEL))
        for way in json.loads((fitted / "qairt" / "ways.json").read_bytes())["ways"]:
            differs = "-" if way["differs"] is None else len(way["differs"])
            counts = f"{way['islands']} islands, {way['parts']} parts, not as planned: {differs}"
            print(f"{way['name']:10}can {TARGET} do it: {way['can']}; {counts}")
        _compiled(fitted, data, folder)


def _compiled(fitted: Path, data: Path, folder: Path) -> None:
    """Compile the QDQ model of a run with the HTP compiler, read it back, and emulate one sample."""
    (folder / "compiled").mkdir()
    options = read_options(chip_named(CHIP), {})
    built = compile_model(options, (Artifact("model", fitted / "model.onnx"),), folder / "compiled")
    if built.error:
        print(f"not compiled: {built.error}")
        return
    rows = read_back(built, read_plan(fitted / "plan.json", DType.F16)).tensors
    print(f"{CHIP}: {len(rows)} planned tensors and edges, {dict(Counter(str(row.outcome) for row in rows))}")
    sample = first_sample(data)
    exact = run_session(open_session(fitted / "qairt" / "fallback" / "model.onnx", Mode.EXACT), sample)
    simulated = run_session(open_session(fitted / "model.onnx", Mode.EXACT), sample)
    (emulated,) = run(options, built, [sample])
    for name, array in exact.items():
        figures = (sqnr_db(np.asarray(array), np.asarray(found[name])) for found in (simulated, emulated))
        print(f"{name}: simulated and emulated {', '.join(f'{value:.1f}' for value in figures)} dB against float")


if __name__ == "__main__":
    main()
