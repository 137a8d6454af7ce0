"""A shipped vision transformer in the real runtime: not further from float than its simulation, and as accurate.

Both of them in both precisions: ``dovetail demo --target xnnpack --precision auto [--model vit_fashion]``, whose table
has simulation and target side by side. Lowering one takes most of a minute.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail import zoo
from dovetail.backend import Outcome
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.targets import open_target
from dovetail.targets.xnnpack.table import STATIC
from tests.backends.xnnpack.lowering import lowered
from tests.equality import run, sqnr_db

pytest.importorskip("executorch", reason="needs the package executorch")

LOSS_DB = 1.0
SAMPLES = 100


def test_the_target_is_as_close_to_float_as_its_simulation(tmp_path: Path) -> None:
    shipped, target = zoo.load("vit_digits"), open_target("xnnpack")
    model, _ = normalize(read(shipped.model_path))
    for each in (*target.rewrites, infer_shapes):
        each(model)
    data = open_data(shipped.calib(), input_specs(model))
    stats = collect(model, observed(model, target), data, workdir=tmp_path, histograms=False)
    program = lowered(model, make_plan(model, target, stats, Request(STATIC)), target, tmp_path)
    assert {row.outcome for row in program.read_back.tensors} == {Outcome.MATCHED}
    samples = [{key: array[i : i + 1] for key, array in shipped.eval().items()} for i in range(SAMPLES)]
    exact, simulated, found = (
        np.concatenate([way(sample)["logits"] for sample in samples])
        for way in (lambda sample: run(model, sample), program.simulate, program.run)
    )
    assert sqnr_db(exact, found) >= sqnr_db(exact, simulated) - LOSS_DB
    assert (exact.argmax(-1) != found.argmax(-1)).sum() <= SAMPLES // 100
