"""The shipped ViT, quantized as the pipeline does it, once for all tests that need it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import onnx_ir as ir

from dovetail import zoo
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.model.read import read
from dovetail.passes.normalize import normalize
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.stats import Stats
from dovetail.storage import Plan
from dovetail.targets.ort_cpu.target import ORT_CPU
from tests.qdq.round_trip import Array

NAME = "vit_digits"
SAMPLES = 16


@cache
def float_graph() -> tuple[ir.Model, Stats]:
    """The normalized graph with the target's rewrites, and its statistics."""
    shipped = zoo.load(NAME)
    model, _ = normalize(read(shipped.model_path))
    for rewrite in ORT_CPU.rewrites.graph:
        rewrite(model)
    calibration = {name: array[:SAMPLES] for name, array in shipped.calib().items()}
    data = open_data(calibration, input_specs(model))
    with tempfile.TemporaryDirectory() as folder:
        return model, collect(model, observed(model, ORT_CPU.table), data, workdir=Path(folder), histograms=False)


@cache
def planned(precision: str, quantized_io: bool = False) -> tuple[ir.Model, Plan]:
    """The float graph and its plan in a precision."""
    model, stats = float_graph()
    plan = make_plan(model, ORT_CPU.table, stats, Request(ORT_CPU.table.precisions[precision]))
    return model, replace(plan, quantized_io=quantized_io)


def images(count: int) -> list[dict[str, Array]]:
    """Held-out samples."""
    held_out = zoo.load(NAME).eval()
    return [{name: array[i : i + 1] for name, array in held_out.items()} for i in range(count)]
