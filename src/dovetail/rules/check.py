"""Checking a model against the rules: ``check`` on what is at hand, ``check_file`` from a file."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from types import MappingProxyType

import onnx_ir as ir

from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import DataLike, open_data
from dovetail.errors import InputError
from dovetail.finding import Finding
from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.model.read import Shapes, read
from dovetail.passes.as_float32 import as_float32
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.plan.make import observed
from dovetail.qdq.invert import invert, is_quantized
from dovetail.qdq.params import is_quantize
from dovetail.rules.catalog import all_rules, find_rule
from dovetail.rules.subject import Subject
from dovetail.stats import Stats
from dovetail.target import Target

__all__ = ["Subject", "check", "check_file"]


def check(subject: Subject, codes: Collection[str] | None = None) -> tuple[Finding, ...]:
    """What the rules for the subject's target find, by code and then in graph order; ``codes`` limits the rules."""
    rules = all_rules() if codes is None else [find_rule(code) for code in sorted(set(codes))]
    checks = [rule.check for rule in rules if rule.check is not None and rule.applies_to(subject.target.name)]
    return tuple(finding for check_rule in checks for finding in check_rule(subject))


def check_file(
    path: str | Path,
    target: Target,
    shapes: Shapes = MappingProxyType({}),
    calibration: DataLike | None = None,
) -> tuple[Finding, ...]:
    """The findings on a model file; the file is not changed.

    A float model is looked at in the form that would be quantized, so that what normalization cures is not found. A
    QDQ model is looked at as it is. Shapes that are not known are a finding, unless there is calibration data: running
    the model needs them.
    """
    raw = read(path, shapes)
    model, plan = invert(_readable(raw, target)) if is_quantized(raw) else (_as_quantized(raw, target), None)
    infer_shapes(model)
    stats = None if calibration is None else _statistics(model, target, calibration)
    return check(Subject(model, target, plan, stats, raw))


def _readable(raw: ir.Model, target: Target) -> ir.Model:
    """The file as a plan can say it: where a target's files compute in float16, in float32 and saturating."""
    if not target.takes_float16:
        return raw
    infer_shapes(raw)
    model = raw.clone()
    as_float32(model)
    for node in model.graph:
        if is_quantize(node):
            node.attributes.pop("saturate", None)
    return model


def _as_quantized(raw: ir.Model, target: Target) -> ir.Model:
    """The float graph as ``fit`` would quantize it; as it was read where the inputs are open, which ``fit`` refuses."""
    if any(shape_of(value) is None for value in raw.graph.inputs):
        return raw.clone()
    model, _ = normalize(raw)
    for rewrite in target.rewrites:
        rewrite(model)
    return model


def _statistics(model: ir.Model, target: Target, calibration: DataLike) -> Stats | None:
    """What calibration sees of the tensors whose shapes are known; None where there is nothing to look at."""
    data = open_data(calibration, input_specs(model))
    values = {v.name: v for v in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs))}
    names = [name for name in observed(model, target) if shape_of(values[name]) is not None]
    for name in names:
        if values[name].dtype != ir.DataType.FLOAT:
            raise InputError(
                f"tensor {origin_of(values[name]).name!r} is {values[name].dtype}: only float32 can be calibrated"
            )
    if not names:
        return None
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        return collect(model, names, data, workdir=Path(folder), histograms=True)
