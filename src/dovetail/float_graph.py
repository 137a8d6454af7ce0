"""From the caller's graph to the one that is quantized: normalized, cut where the target cannot run it, rewritten."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.model.origin import adopt_lost
from dovetail.model.read import require_float32, require_known_shapes
from dovetail.model.split import SplitModel, split
from dovetail.pass_record import PassRecord
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.target import Target

Passed = tuple[ir.Model, tuple[PassRecord, ...]]


def cut(normalized: ir.Model, target: Target) -> SplitModel:
    """The normalized graph as head and tail: what the target cannot run, and all that depends on it, is the tail."""
    return split(normalized, target.table.unsupported)


def rewrite(head: ir.Model, target: Target, original: ir.Model) -> Passed:
    """The head as the target wants it; names of the original that no tensor has any more go to those that took over."""
    model = head.clone()
    records = [each(model) for each in target.rewrites.graph] + [infer_shapes(model)]
    adopt_lost(original.graph, model.graph)
    return model, tuple(records)


def require_quantizable(model: ir.Model) -> None:
    """Refuse a rewritten graph that is not float32 throughout, or has a shape that is not known."""
    require_float32(model)
    require_known_shapes(model)


def prepared(original: ir.Model, target: Target) -> ir.Model:
    """The whole of it, for a look at what would be quantized."""
    normalized, _ = normalize(original)
    return rewrite(cut(normalized, target).head, target, original)[0]
