"""``check``: apply the rules to a model file, in the form that ``fit`` would quantize."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import onnx_ir as ir

from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import DataLike, open_data
from dovetail.catalog import find_rule, rules_for
from dovetail.errors import InputError
from dovetail.finding import Finding
from dovetail.float_graph import depends_on_data, fit_to_data, prepared
from dovetail.float_sessions import require_no_crash
from dovetail.garbage import without_garbage_collection
from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of
from dovetail.model.read import Shapes, read
from dovetail.model.suggest_shapes import require_static
from dovetail.op_support import OpTable
from dovetail.passes.as_float32 import as_float32, has_float16
from dovetail.passes.fold_constants import fold_constants
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.plan.make import observed
from dovetail.qdq.invert import invert, is_quantized
from dovetail.qdq.params import is_quantize, use_onnx_domain
from dovetail.rules.check import check
from dovetail.rules.check_input import CheckInput
from dovetail.rules.types import unsupported_nodes
from dovetail.stats import Stats
from dovetail.target import Target

DYNAMIC_SHAPE, UNSUPPORTED_TYPE = "Q601", "Q112"


def check_file(
    path: str | Path,
    target: Target,
    shapes: Shapes = MappingProxyType({}),
    calibration: DataLike | None = None,
) -> tuple[Finding, ...]:
    """Return the findings on a model file; the file is not changed.

    A float model is checked in the form that would be quantized, so that what normalization fixes is not reported. A
    QDQ model is checked as it is; a quantized type that Dovetail does not support is its only finding. An unknown input
    shape is a finding, and the only one: what else is found without shapes may not be true. With calibration data it is
    an error, because the model cannot be run.
    """
    if calibration is not None:  # the caller's own code may read the data
        return _check_file(path, target, shapes, calibration)
    with without_garbage_collection():
        return _check_file(path, target, shapes, None)


def _check_file(path: str | Path, target: Target, shapes: Shapes, calibration: DataLike | None) -> tuple[Finding, ...]:
    raw = read(path, shapes)
    if not is_quantized(raw) and has_float16(raw):
        as_float32(raw)
    if calibration is None and any(shape_of(value) is None for value in raw.graph.inputs):
        return check(CheckInput(raw, target.table, target.facts, raw=raw), [find_rule(DYNAMIC_SHAPE)])
    if any(unsupported_nodes(raw)):
        return check(CheckInput(raw, target.table, target.facts, raw=raw), [find_rule(UNSUPPORTED_TYPE)])
    model, plan = invert(_in_float32(raw)) if is_quantized(raw) else (_as_quantized(raw, target), None)
    if calibration is not None and plan is None:
        model = _fitted(model, calibration)
    stats = None if calibration is None else statistics(model, target.table, calibration)
    return check(CheckInput(model, target.table, target.facts, plan, stats, raw), rules_for(target))


def _in_float32(raw: ir.Model) -> ir.Model:
    """Return a QDQ graph that a plan can describe: float16 operators in float32, every QuantizeLinear saturating.

    What depends on constants alone is folded, as runtimes do before they compile; nothing is folded through a Q/DQ
    pair. Shapes are those that are inferred beside the Q/DQ pairs, as compilers infer them.
    """
    infer_shapes(raw)
    model = raw.clone()
    if has_float16(model):
        as_float32(model)
    use_onnx_domain(model)
    infer_shapes(model)  # through 16-bit Q/DQ pairs as well
    fold_constants(model)
    for node in model.graph:
        if is_quantize(node):
            node.attributes.pop("saturate", None)
    return model


def _as_quantized(raw: ir.Model, target: Target) -> ir.Model:
    """Return the graph that ``fit`` would quantize."""
    require_static(raw)
    try:
        return prepared(raw, target)
    except InputError:  # an unsupported operator that cannot be moved to the tail is reported by the rules
        return prepared(raw, replace(target, table=replace(target.table, unsupported={})))


def _fitted(model: ir.Model, calibration: DataLike) -> ir.Model:
    """Return the graph with masks and sentinels as ``fit`` sets them from calibration data."""
    data = open_data(calibration, input_specs(model))
    if not depends_on_data(model, data):
        return model
    require_no_crash((model,), model)
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        return fit_to_data(model, data, Path(folder))[0]


def statistics(model: ir.Model, table: OpTable, calibration: DataLike) -> Stats | None:
    """Calibrate the tensors whose shapes are known; None if there are none."""
    data = open_data(calibration, input_specs(model))
    values = {v.name: v for v in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs))}
    names = [name for name in observed(model, table) if shape_of(values[name]) is not None]
    for name in names:
        if values[name].dtype != ir.DataType.FLOAT:
            raise InputError(
                f"tensor {origin_of(values[name]).name!r} is {values[name].dtype}: only float32 can be calibrated"
            )
    if not names:
        return None
    require_no_crash((model,), model)
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        return collect(model, names, data, workdir=Path(folder), histograms=True)
