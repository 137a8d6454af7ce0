"""A model that another tool quantized, made to deploy: its weights and scales kept, its pairs put where the target
wants them, and a list of what was changed and what was missing."""

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
from dovetail.storage import ScaleSource
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.trials.workbench import Workbench
from dovetail.verify.metric import Metric

RECORD = "repair.json"
FLOAT = "float.onnx"
# Passes of the line whose sites are part of what was done to the pairs of an attention.
_ON_ATTENTION = ("remove_nan_guard", "remove_zero_masks", "attention_scale")
# What the graph is run on where there is no data, and what is said of that.
_NOISE = "random"
_NO_DATA = (
    "no calibration data was given: every scale came with the model or is fixed by the target, none is from noise"
)
# The precision that a model has, by how its activations are stored.
_PRECISIONS = {DType.F8E4M3: "fp8", DType.S8: "w8a8", DType.U8: "w8a8", DType.S16: "w8a16", DType.U16: "w8a16"}


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done to a model: pairs whose numbers were ``kept`` or ``changed``, pairs that were ``missing`` (with
    where their numbers come from), pairs ``removed``; what the compiler said of the model as it was given; and the
    ``rewrites`` of the graph, with where they were done and where they were declined."""

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
) -> tuple[Result, Repair]:
    """Run the line on the float model that a QDQ model stands for, with the numbers that came with it.

    Without calibration data no number may be missing: figures are then taken on noise, which the result says.
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
        notes = (*result.notes, *((_NO_DATA,) if calibration is None else ()), *_words(record))
        return replace(result, model_sha256=sha256, passes=(*passes, *result.passes), notes=notes)

    with tempfile.TemporaryDirectory(prefix="dovetail-repair-") as folder:
        written = write(model, Path(folder) / path.name)
        data = _NOISE if calibration is None else calibration
        job = prepare(written[0], options, calibration=data, evaluation=evaluation, metric=metric)
        request = replace(job.request, from_data=calibration is not None)
        job = replace(job, imported=imported, request=request)
        result = fit(job, output, force=force, report=report, amend=amend)
    return result, records[0]


def precision_of(path: Path, options_shape: dict[str, tuple[int, ...]] | None = None) -> str:
    """The precision that a quantized model has, by most of its activations."""
    _, imported, _ = _read(path, FitOptions(target="", shape=options_shape or {}))
    counts = Counter(params.dtype for params in imported.tensors.values())
    if not counts:
        raise InputError(f"{path}: no activation is quantized: say --precision")
    dtype, count = counts.most_common(1)[0]
    if dtype not in _PRECISIONS:
        raise InputError(
            f"{path}: {count} of {counts.total()} quantized activations are {dtype}, which is no precision of a "
            "target: say --precision, for example --precision w8a8"
        )
    return _PRECISIONS[dtype]


def _read(
    path: Path, options: FitOptions, rewrites: tuple[Pass, ...] = ()
) -> tuple[ir.Model, ImportedQParams, tuple[PassRecord, ...]]:
    """The float model that a QDQ model stands for, the numbers that came with it, and what was done to read them."""
    raw = read(path, options.shape)
    if not is_quantized(raw):
        raise InputError(f"{path}: is not quantized: `dovetail fit` takes the float model")
    records = tuple(each(raw) for each in (*rewrites, as_float32))
    model, plan = invert(raw)
    return model, imported_qparams(model, plan), records


def _as_given(path: Path, target: Target, work: Path) -> CompileResult:
    """What the target's compiler makes of the model before anything was changed: of a copy, because some write beside
    the file; every node of it has a name of its own, by which a compiler speaks of it."""
    found = target.backend.probe()
    if not found.available:
        return CompileResult(error=found.missing, finished=False)
    folder = work / "as_given"
    folder.mkdir()
    model = ir.load(path)
    names = [node.name for node in model.graph]
    if not all(names) or len(set(names)) != len(names):
        name_nodes(model.graph)
    bench = Workbench(target.table, target.backend, lambda: (), work, available=found.available)
    return bench.compile((Artifact(MODEL, write(model, folder / path.name)[0]),), folder)


def _compare(
    path: Path,
    sha256: str,
    result: Result,
    imported: ImportedQParams,
    before: CompileResult,
    passes: tuple[PassRecord, ...],
) -> Repair:
    stored = [row for row in result.plan if row.dtype.is_quantized]
    kept = [row for row in stored if row.scale_from is ScaleSource.GIVEN or _is_same(row, imported)]
    other = [row for row in stored if row not in kept]
    had = {*imported.tensors, *imported.constants}
    changed = {_name(row): row.detail for row in other if row.original_name in had}
    missing = {_name(row): row.detail for row in other if row.original_name not in had}
    names = {row.original_name for row in stored} | {row.tensor for row in stored}
    removed = [name for name in imported.tensors if name not in names]
    said = (f"refused: {before.error}",) if before.error else before.notes
    later = (one for one in result.passes if one.name in _ON_ATTENTION)
    done = tuple(one for one in (*passes, *later) if one.changed or one.declined)
    return Repair(
        path.name, sha256, tuple(map(_name, kept)), changed, missing, tuple(removed), said, before.findings, done
    )


def _is_same(row: PlanRow, imported: ImportedQParams) -> bool:
    """Whether a number that the target fixes is the one that came with the model, in float32 or in float16."""
    had = imported.tensors.get(row.original_name)
    if had is None or row.original_name in imported.several or had.axis is not None or row.scale is None:
        return False
    same = row.dtype is had.dtype and row.zero_point == int(had.zero_point)
    scale = np.asarray(row.scale)
    return same and bool(had.scale in (scale.astype(np.float32), scale.astype(np.float16)))


def _name(row: PlanRow) -> str:
    return row.original_name if row.edge is None else f"{row.original_name} at {row.edge}"


def _words(record: Repair) -> tuple[str, ...]:
    return (
        f"repaired: {len(record.kept)} pairs have the numbers that came with {record.model}, {len(record.changed)} "
        f"have others, {len(record.missing)} were missing, {len(record.removed)} went; {RECORD} lists them",
        *(f"as given: {text}" for text in record.as_given),
    )
