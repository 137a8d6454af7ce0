"""A naive baseline: the same quantized edges, with one scale per tensor (weights too) from the largest value seen."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.calibrate.record import load_stats
from dovetail.edge import Edge
from dovetail.encoding import Encoding, Granularity, QParams
from dovetail.model.edit import constant_of
from dovetail.model.session import Mode
from dovetail.numerics.metrics import Comparison
from dovetail.numerics.ranges import params_from_range
from dovetail.plan.make import make_plan
from dovetail.plan.request import Request
from dovetail.storage import Choice, Plan, Reason
from dovetail.target import Target
from dovetail.verify.run import SessionRun


def max_calibrated(run: Path, target: Target, precision: str, folder: Path) -> Path:
    """Emit the QDQ graph of a run again with the naive scales; return its path."""
    model = ir.load(run / "stages" / "rewritten.onnx")
    plan = make_plan(
        model, target.table, load_stats(run / "stages" / "stats.npz"), Request(target.table.precisions[precision])
    )
    return target.backend.emit(model, dataclasses.replace(plan, edges=per_tensor(plan, model)), folder)[0].path


def per_tensor(plan: Plan, model: ir.Model) -> dict[Edge, Choice]:
    """The edges of a plan, with one scale per constant, from its largest absolute value."""
    nodes = {node.name: node for node in model.graph}
    edges = dict(plan.edges)
    for edge, choice in plan.edges.items():
        array = constant_of(nodes[edge.node].inputs[edge.index])
        if isinstance(choice.storage, QParams) and array is not None:
            encoding = dataclasses.replace(choice.storage.encoding, granularity=Granularity.TENSOR)
            edges[edge] = Choice(_from_largest(array, encoding), Reason.PINNED, "the largest value")
    return edges


def _from_largest(array: Any, encoding: Encoding) -> QParams:
    largest = float(np.abs(array).max())
    return params_from_range(-largest, largest, encoding)


def sqnr_db(reference: Path, quantized: Path, samples: Sequence[dict[str, Any]], output: str) -> float:
    """The SQNR of one output of a quantized graph against the float model, over all samples."""
    with tempfile.TemporaryDirectory(prefix="bench-tensorrt-") as folder:
        float_runs = SessionRun(reference, Mode.FLOAT, Path(folder))(samples)
        simulated = SessionRun(quantized, Mode.EXACT, Path(folder))(samples)
        comparisons = [
            Comparison.of(expected[output], actual[output])
            for expected, actual in zip(float_runs, simulated, strict=True)
        ]
    return sum(comparisons[1:], comparisons[0]).sqnr_db
