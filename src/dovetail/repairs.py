"""Repairing a model that another tool quantized: its weights and scales are kept, its Q/DQ pairs are placed where the
target expects them, and a record lists what was changed and what was missing."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir

from dovetail.backend import MODEL, Artifact, CompileResult
from dovetail.calibrate.sources import DataLike
from dovetail.clock import Reporter, silent
from dovetail.config import FitOptions
from dovetail.encoding import DType
from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.finding import Finding
from dovetail.job import prepare
from dovetail.model.external_data import external_files
from dovetail.model.read import name_nodes, read
from dovetail.model.write import write, write_whole
from dovetail.pass_record import Pass, PassRecord
from dovetail.passes.as_float32 import as_float32
from dovetail.pipeline import fit
from dovetail.plan.imported_qparams import ImportedQParams, imported_qparams
from dovetail.plan.rows import PlanRow
from dovetail.qdq.invert import invert, is_quantized
from dovetail.report.result import Result
from dovetail.run_record import RunOrigin
from dovetail.storage import ScaleSource
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.trials.workbench import Workbench
from dovetail.verify.metric import Metric

RECORD = "repair.json"
FLOAT = "float.onnx"
# Passes of the pipeline whose sites belong to the repair of an attention block.
_ON_ATTENTION = ("remove_nan_guard", "remove_zero_masks", "attention_scale")
# The data that the graph is run on if none is given, and the note about it.
_NOISE = "random"
_NO_DATA = (
    "no calibration data was given: every scale came with the model or is fixed by the target, none was calibrated"
)
# Dtype of the activations -> the precision of the model.
_PRECISIONS = {DType.F8E4M3: "fp8", DType.S8: "w8a8", DType.U8: "w8a8", DType.S16: "w8a16", DType.U16: "w8a16"}


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


def repair(
    path: Path,
    options: FitOptions,
    output: Path,
    *,
    calibration: DataLike | None,
    evaluation: DataLike | None = None,
    metric: Metric | None = None,
    force: bool = False,
    report: Reporter = silent,
    command: str = "dovetail.repair",
) -> tuple[Result, Repair]:
    """Run ``fit`` on the float model that a QDQ model represents, with the scales and zero points that came with it.

    Without calibration data no scale may be missing; metrics are then measured on random inputs, which the result says.
    """
    target = open_target(options.target, options.option)
    model, imported, passes = _read(path, options, target.rewrites.quantized)
    records: list[Repair] = []

    def amend(result: Result, run: Path) -> Result:
        for file in written:
            shutil.copyfile(file, run / file.name.replace(path.name, FLOAT, 1))
        sha256 = file_sha256(path, *external_files(path))
        before = _as_given(path, target, Path(folder))
        record = _compare(path, sha256, result, imported, before, passes[:-1])  # the last one only changed types
        records.append(record)
        write_whole(run / RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1))
        notes = (*result.notes, *((_NO_DATA,) if calibration is None else ()), *_notes(record))
        return replace(result, model_sha256=sha256, passes=(*passes, *result.passes), notes=notes)

    with tempfile.TemporaryDirectory(prefix="dovetail-repair-") as folder:
        written = write(model, Path(folder) / path.name)
        data = _NOISE if calibration is None else calibration
        job = prepare(written[0], options, calibration=data, evaluation=evaluation, metric=metric)
        request = replace(job.request, from_data=calibration is not None)
        job = replace(job, imported=imported, request=request)
        origin = RunOrigin("repair", command)
        result = fit(job, output, force=force, report=report, origin=origin, amend=amend)
    return result, records[0]


def precision_of(path: Path, options_shape: dict[str, tuple[int, ...]] | None = None) -> str:
    """Return the precision of a quantized model, which is that of most of its activations."""
    _, imported, _ = _read(path, FitOptions(target="", shape=options_shape or {}))
    counts = Counter(params.dtype for params in imported.tensors.values())
    if not counts:
        raise InputError(f"{path} has no quantized activation, so the precision is unknown: add --precision")
    dtype, count = counts.most_common(1)[0]
    if dtype not in _PRECISIONS:
        raise InputError(
            f"{path}: {count} of {counts.total()} quantized activations are {dtype}, which no precision of a target "
            "uses: add --precision, for example --precision w8a8"
        )
    return _PRECISIONS[dtype]


def _read(
    path: Path, options: FitOptions, rewrites: tuple[Pass, ...] = ()
) -> tuple[ir.Model, ImportedQParams, tuple[PassRecord, ...]]:
    """Return the float model that a QDQ model represents, its quantization parameters, and the records of the passes
    that were applied to read them."""
    raw = read(path, options.shape)
    if not is_quantized(raw):
        raise InputError(f"{path} is not quantized: use `dovetail fit` for a float model")
    records = tuple(rewrite(raw) for rewrite in (*rewrites, as_float32))
    model, plan = invert(raw)
    return model, imported_qparams(model, plan), records


def _as_given(path: Path, target: Target, work: Path) -> CompileResult:
    """Compile the model as given, before the repair.

    A copy is compiled, because some compilers write next to the file. Its nodes have unique names, which the compiler's
    messages refer to.
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
    bench = Workbench(target.table, target.backend, lambda: (), work, available=probe.available)
    return bench.compile((Artifact(MODEL, write(model, folder / path.name)[0]),), folder)


def _compare(
    path: Path,
    sha256: str,
    result: Result,
    imported: ImportedQParams,
    before: CompileResult,
    passes: tuple[PassRecord, ...],
) -> Repair:
    quantized = [row for row in result.plan if row.dtype.is_quantized]
    kept = [row for row in quantized if row.scale_from is ScaleSource.GIVEN or _is_same(row, imported)]
    not_kept = [row for row in quantized if row not in kept]
    in_model = {*imported.tensors, *imported.constants}
    changed = {_name(row): row.detail for row in not_kept if row.original_name in in_model}
    missing = {_name(row): row.detail for row in not_kept if row.original_name not in in_model}
    names = {row.original_name for row in quantized} | {row.tensor for row in quantized}
    removed = [name for name in imported.tensors if name not in names]
    messages = (f"not compiled: {before.error}",) if before.error else before.notes
    later = (record for record in result.passes if record.name in _ON_ATTENTION)
    rewrites = tuple(record for record in (*passes, *later) if record.changed or record.declined)
    return Repair(
        path.name,
        sha256,
        tuple(map(_name, kept)),
        changed,
        missing,
        tuple(removed),
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


def _notes(record: Repair) -> tuple[str, ...]:
    return (
        f"repaired: {len(record.kept)} Q/DQ pairs keep the scale and zero point of {record.model}, "
        f"{len(record.changed)} have others, {len(record.missing)} were missing, {len(record.removed)} were removed; "
        f"{RECORD} lists them",
        *(f"as given: {message}" for message in record.as_given),
    )
