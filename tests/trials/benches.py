"""Helper of the trial tests: a workbench with a few random samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.op_support import Precision
from dovetail.plan.request import Request
from dovetail.target import Target
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Workbench
from tests.planning import noise, observe


def samples_of(model: ir.Model, count: int = 4) -> list[Sample]:
    data = noise(model, count)
    return [{name: array[i] for name, array in data.items()} for i in range(count)]


def bench_of(
    model: ir.Model, target: Target, precision: Precision, folder: Path, *, count: int = 4, **more: Any
) -> tuple[Workbench, Variant]:
    """A workbench, and its first variant."""
    stats = observe(model, target, noise(model, count))
    bench = Workbench(target.table, target.backend, lambda: samples_of(model, count), folder, **more)
    return bench, Variant(model, stats, Request(precision))
