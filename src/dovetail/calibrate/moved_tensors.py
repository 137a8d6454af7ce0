"""Which tensors of a rewritten graph hold the values of an original tensor, reshaped or in part; found by running both.

Scales that came with the original graph apply to such tensors as well: passes flatten the rows of a tensor or split a
fused projection, but do not change its values. A tensor that was scaled or fused is none of them.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.encoding import Array
from dovetail.model.edit import constant_of, shape_of
from dovetail.model.observe import ObservedRun
from dovetail.model.origin import origin_of
from dovetail.passes.infer_shapes import infer_shapes

# Passes may reorder sums, so that float32 values differ in their last digits.
_RTOL = 1e-4


def moved_tensors(
    original: ir.Model, model: ir.Model, names: Collection[str], sample: Sample, workdir: Path
) -> dict[str, str]:
    """Tensors of ``model`` -> the tensor of ``original``, one of ``names``, whose values they hold on this sample."""
    original = original.clone()
    infer_shapes(original)
    sources = {str(v.name) for node in original.graph for v in node.outputs if _observable(v)} & set(names)
    origins = {
        str(v.name): origin_of(v).name
        for node in model.graph
        for v in node.outputs
        if not origin_of(v).exact and origin_of(v).name in sources and _observable(v)
    }
    if not origins:
        return {}
    wanted = sorted(set(origins.values()))
    before = {name: np.array(array) for name, array in ObservedRun(original, wanted, workdir).run(sample)}
    after = ObservedRun(model, sorted(origins), workdir).run(sample)
    return {name: origins[name] for name, array in after if holds_values(before[origins[name]], array)}


def _observable(value: ir.Value) -> bool:
    return value.dtype is ir.DataType.FLOAT and shape_of(value) is not None and constant_of(value) is None


def holds_values(original: Array, array: Array) -> bool:
    """Whether an array has the values of another one in any order, or a contiguous part of its last axis."""
    if array.size == 0 or array.size > original.size:
        return False
    tolerance = _RTOL * float(np.abs(original).max())
    if array.size == original.size:
        return bool(np.allclose(np.sort(original, axis=None), np.sort(array, axis=None), rtol=0, atol=tolerance))
    if original.ndim == 0 or array.ndim == 0:
        return False
    rows, parts = original.reshape(-1, original.shape[-1]), array.reshape(-1, array.shape[-1])
    width = parts.shape[1]
    if len(rows) != len(parts):
        return False
    starts = range(0, rows.shape[1] - width + 1, width)
    return any(np.allclose(rows[:, start : start + width], parts, rtol=0, atol=tolerance) for start in starts)
