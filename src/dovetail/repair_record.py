"""What a repair did to a model: which Q/DQ pairs were kept, changed, missing or removed, and the model before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import MODEL, Artifact, CompileResult
from dovetail.finding import Finding
from dovetail.model.read import name_nodes
from dovetail.model.write import write
from dovetail.pass_record import PassRecord
from dovetail.passes.as_float32 import as_float32
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.rows import PlanRow
from dovetail.report.result import Result
from dovetail.storage import Reason, ScaleSource
from dovetail.target import Target
from dovetail.trials.workbench import Workbench

RECORD = "repair.json"
# Passes of the pipeline whose sites belong to the repair of an attention block.
_ON_ATTENTION = ("remove_nan_guard", "remove_zero_masks", "attention_scale")
# The pass that changes types and nothing else.
_ONLY_TYPES = as_float32.__name__


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done to a model.

    Q/DQ pairs whose scale and zero point were ``kept`` or ``changed``, pairs that were ``missing`` (with where their
    scale comes from) or ``removed``. ``as_given``: the compiler's messages about the model before the repair.
    ``rewrites``: the passes over the graph, with the sites that they changed or declined.
    """

    model: str
    model_sha256: str
    kept: tuple[str, ...]
    changed: dict[str, str]
    missing: dict[str, str]
    removed: tuple[str, ...]
    as_given: tuple[str, ...]
    findings_as_given: tuple[Finding, ...]
    rewrites: tuple[PassRecord, ...] = ()


def compile_as_given(path: Path, target: Target, work: Path) -> CompileResult:
    """Compile the model as given, before the repair.

    A copy is compiled, because some compilers write next to the file. Its nodes have unique names, which the compiler's
    messages refer to, and the types of its tensors are inferred, which a file need not have.
    """
    probe = target.backend.probe()
    if not probe.available:
        return CompileResult(error=probe.missing, finished=False)
    folder = work / "as_given"
    folder.mkdir()
    model = ir.load(path)
    names = [node.name for node in model.graph]
    if not all(names) or len(set(names)) != len(names):
        name_nodes(model.graph)
    infer_shapes(model)
    bench = Workbench(target.table, target.backend, lambda: (), work, available=probe.available)
    return bench.compile((Artifact(MODEL, write(model, folder / path.name)[0]),), folder)


@dataclass(frozen=True, slots=True)
class QParamsKept:
    """Which imported scales and zero points a plan has, which are changed or removed, and which were missing."""

    kept: tuple[str, ...]
    changed: dict[str, str]
    missing: dict[str, str]
    removed: tuple[str, ...]


def qparams_kept(result: Result, imported: ImportedQParams, *, biases: bool = True) -> QParamsKept:
    """Compare the plan of a result with the imported scales and zero points; those of biases are always derived."""
    quantized = [row for row in result.plan if row.dtype.is_quantized and (biases or row.why is not Reason.BIAS)]
    kept = [row for row in quantized if row.scale_from is ScaleSource.GIVEN or _is_same(row, imported)]
    not_kept = [row for row in quantized if row not in kept]
    in_model = {*imported.tensors, *imported.constants}
    changed = {_name(row): row.detail for row in not_kept if row.original_name in in_model}
    missing = {_name(row): row.detail for row in not_kept if row.original_name not in in_model}
    names = {row.original_name for row in quantized} | {row.tensor for row in quantized}
    removed = [name for name in imported.tensors if name not in names]
    return QParamsKept(tuple(map(_name, kept)), changed, missing, tuple(removed))


def compare_with_given(
    path: Path,
    sha256: str,
    result: Result,
    imported: ImportedQParams,
    before: CompileResult,
    passes: tuple[PassRecord, ...],
) -> Repair:
    qparams = qparams_kept(result, imported)
    messages = (f"not compiled: {before.error}",) if before.error else before.notes
    later = (record for record in result.passes if record.name in _ON_ATTENTION)
    rewrites = tuple(r for r in (*passes, *later) if (r.changed or r.declined) and r.name != _ONLY_TYPES)
    return Repair(
        path.name,
        sha256,
        qparams.kept,
        qparams.changed,
        qparams.missing,
        qparams.removed,
        messages,
        before.findings,
        rewrites,
    )


def _is_same(row: PlanRow, imported: ImportedQParams) -> bool:
    """Whether a scale that the target fixes is the one that came with the model, in float32 or in float16."""
    qparams = imported.tensors.get(row.original_name)
    if qparams is None or row.original_name in imported.several or qparams.axis is not None or row.scale is None:
        return False
    same = row.dtype is qparams.dtype and row.zero_point == int(qparams.zero_point)
    scale = np.asarray(row.scale)
    return same and bool(qparams.scale in (scale.astype(np.float32), scale.astype(np.float16)))


def _name(row: PlanRow) -> str:
    return row.original_name if row.edge is None else f"{row.original_name} at {row.edge}"


def notes_on(record: Repair) -> tuple[str, ...]:
    return (
        f"repaired: {len(record.kept)} Q/DQ pairs keep the scale and zero point of {record.model}, "
        f"{len(record.changed)} have others, {len(record.missing)} were missing, {len(record.removed)} were removed; "
        f"{RECORD} lists them",
        *(f"as given: {message}" for message in record.as_given),
    )
