"""From the caller's graph to the one that is quantized: normalized, split from its unsupported tail, rewritten."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import Data
from dovetail.model.memory import require_memory
from dovetail.model.origin import record_fused_names
from dovetail.model.read import require_float32, require_known_shapes
from dovetail.model.split import SplitModel, split
from dovetail.pass_record import PassRecord
from dovetail.passes.fit_sentinels import fit_sentinels, tensors_beside_sentinels
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.passes.remove_unused import remove_unused
from dovetail.plan.requested_weights import RequestedWeights
from dovetail.target import Target

Passed = tuple[ir.Model, tuple[PassRecord, ...]]


def cut(normalized: ir.Model, target: Target) -> SplitModel:
    """Split the normalized graph: operators that the target cannot run, and all that depends on them, are the tail."""
    return split(normalized, target.table.unsupported)


def rewrite(head: ir.Model, target: Target, original: ir.Model, weights: RequestedWeights | None = None) -> Passed:
    """Apply the target's rewrites to the head; an original name that is lost goes to the tensor that replaced it.

    ``weights``: those that are requested; a linear layer whose weight can have the requested blocks gets the form in
    which the target supports them.
    """
    model = head.clone()
    records = [rewrite_pass(model) for rewrite_pass in target.rewrites.graph]
    if weights is not None and weights.has_blocks and target.rewrites.blocks is not None:
        sizes = weights.block_sizes(model, target.table)
        records += [target.rewrites.blocks(model, sizes), remove_unused(model)]
    records.append(infer_shapes(model))
    record_fused_names(original.graph, model.graph)
    return model, tuple(records)


def depends_on_data(model: ir.Model, data: Data) -> bool:
    """Whether ``fit_to_data`` has something to set; never from random data, whose ranges are not those of real data."""
    return not data.random and bool(tensors_beside_sentinels(model))


def fit_to_data(model: ir.Model, data: Data, workdir: Path) -> Passed:
    """Set reduced sentinels and masks to what the ranges of the tensors beside them require; one more calibration."""
    fitted = model.clone()
    names = tensors_beside_sentinels(fitted)
    stats = collect(fitted, names, data, workdir=workdir, histograms=False)
    record = fit_sentinels(fitted, {name: (tensor.low, tensor.high) for name, tensor in stats.tensors.items()})
    return fitted, (record,)


def require_quantizable(model: ir.Model) -> None:
    """Refuse a rewritten graph that is not float32 throughout, has an unknown shape or does not fit into memory."""
    require_float32(model)
    require_known_shapes(model)
    require_memory(value for node in model.graph for value in node.outputs)


def prepared(original: ir.Model, target: Target, weights: RequestedWeights | None = None) -> ir.Model:
    """Return the graph that would be quantized: normalized, without its tail, rewritten for the requested weights."""
    normalized, _ = normalize(original)
    return rewrite(cut(normalized, target).head, target, original, weights)[0]
