"""Helpers of the planning tests: a plan from a few lines of ONNX text."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.model.read import read
from dovetail.op_support import W8A8, Precision
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.plan.constraints import build_problem
from dovetail.plan.make import make_plan, observed
from dovetail.plan.pins import resolve_keeps
from dovetail.plan.request import Keep, Request
from dovetail.stats import Stats
from dovetail.storage import Plan
from dovetail.target import Target


def graph(body: str, header: str = "", opset: int = 21) -> ir.Model:
    """A model from ``name (inputs) => (outputs) <initializers> { nodes }``, read through a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {body}'), path)
        model = read(path)
    infer_shapes(model)
    return model


def observe(model: ir.Model, target: Target, data: dict[str, np.ndarray], histograms: bool = False) -> Stats:
    """Statistics over arrays with samples along the first axis."""
    with tempfile.TemporaryDirectory() as folder:
        names = observed(model, target.table)
        source = open_data(data, input_specs(model))
        return collect(model, names, source, workdir=Path(folder), histograms=histograms)


def noise(model: ir.Model, count: int = 4, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Seeded random samples for every input."""
    random = np.random.default_rng(0)
    return {
        spec.name: (scale * random.standard_normal((count, *spec.shape))).astype(spec.dtype)
        for spec in input_specs(model)
    }


def planned(
    model: ir.Model,
    target: Target,
    precision: Precision = W8A8,
    *,
    data: dict[str, np.ndarray] | None = None,
    keep: dict[str, Precision] | None = None,
    quantized_io: bool = False,
) -> Plan:
    """The plan of a model on a target."""
    stats = observe(model, target, data or noise(model))
    keeps = [Keep(pattern, kept_precision) for pattern, kept_precision in (keep or {}).items()]
    pins = resolve_keeps(build_problem(model, target.table), keeps)
    return make_plan(model, target.table, stats, Request(precision, pins=pins, quantized_io=quantized_io))
