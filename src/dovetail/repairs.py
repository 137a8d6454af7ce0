"""Repairing a model that another tool quantized: its weights and scales are kept, its Q/DQ pairs are placed where the
target expects them, and a record lists what was changed and what was missing."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir

from dovetail.backend import MODEL, Artifact, CompileResult
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import DataLike
from dovetail.clock import Reporter, silent
from dovetail.config import FitOptions
from dovetail.encoding import DType, QParams
from dovetail.errors import BackendError, InputError
from dovetail.files import file_sha256
from dovetail.finding import Finding, Verdict
from dovetail.job import Job, prepare
from dovetail.model.class_scores import class_outputs
from dovetail.model.external_data import external_files
from dovetail.model.read import name_nodes, read
from dovetail.model.session import Mode
from dovetail.model.write import write, write_whole
from dovetail.op_support import OpTable
from dovetail.pass_record import Pass, PassRecord
from dovetail.passes.as_float32 import as_float32
from dovetail.pipeline import fit
from dovetail.plan.imported_qparams import ImportedQParams, imported_qparams
from dovetail.plan.rows import PlanRow, read_plan
from dovetail.qdq.change_types import Types, change_types
from dovetail.qdq.invert import invert, is_quantized
from dovetail.qdq.quantized_io import RunSamples, with_float_io
from dovetail.qdq.restore_activations import restore_activations
from dovetail.qdq.simulation import load_simulation
from dovetail.report.assemble import TAIL
from dovetail.report.result import Result
from dovetail.run_record import RunOrigin
from dovetail.storage import Plan, ScaleSource
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.trials.workbench import Workbench
from dovetail.verify.metric import Metric
from dovetail.verify.repaired import RepairStreams, judge_repair, literal_run, not_checked
from dovetail.verify.run import SessionRun, followed

RECORD = "repair.json"
VERDICT = "repaired"
FLOAT = "float.onnx"
# How many samples are compared: on 16 the figures of two equally good models differ by 1 dB or more, and where outputs
# have a top class, fewer than 100 do not show a difference of 1 %.
COMPARED_SAMPLES, CLASSIFIED_SAMPLES = 64, 256
# Passes of the pipeline whose sites belong to the repair of an attention block.
_ON_ATTENTION = ("remove_nan_guard", "remove_zero_masks", "attention_scale")
# The pass that changes types and nothing else.
_ONLY_TYPES = as_float32.__name__
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
    float_model: Path | None = None,
    force: bool = False,
    report: Reporter = silent,
    command: str = "dovetail.repair",
) -> tuple[Result, Repair]:
    """Run ``fit`` on the float model that a QDQ model represents, with the scales and zero points that came with it.

    The verdict ``repaired`` compares the result with the model as given: by their distance to ``float_model``, which
    the model was quantized from, or else directly. Without calibration data no scale may be missing; metrics are then
    measured on random inputs, which the result says.
    """
    target = open_target(options.target, options.option)
    model, given_plan, passes = _read(path, options, target.rewrites.quantized)
    _require_precision(path, options, target.table)
    imported = imported_qparams(model, given_plan)
    reference = None if float_model is None else _read_float(float_model, options, model)
    records: list[Repair] = []

    def amend(result: Result, run: Path) -> Result:
        for file in written:
            shutil.copyfile(file, run / file.name.replace(path.name, FLOAT, 1))
        sha256 = file_sha256(path, *external_files(path))
        before = _as_given(path, target, Path(folder))
        record = _compare(path, sha256, result, imported, before, passes)
        records.append(record)
        write_whole(run / RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1))
        notes = (*result.notes, *((_NO_DATA,) if calibration is None else ()), *_notes(record))
        verdict = _judge(_Comparison(path, model, given_plan, reference, job), result, run, Path(folder))
        normalized, *others = result.verdicts.items()
        verdicts = dict([normalized, (VERDICT, verdict), *others])
        return replace(result, model_sha256=sha256, passes=(*passes, *result.passes), notes=notes, verdicts=verdicts)

    with tempfile.TemporaryDirectory(prefix="dovetail-repair-") as folder:
        written = write(model, Path(folder) / path.name)
        data = _NOISE if calibration is None else calibration
        job = prepare(written[0], options, calibration=data, evaluation=evaluation, metric=metric)
        request = replace(job.request, from_data=calibration is not None)
        job = replace(job, imported=imported, request=request)
        origin = RunOrigin("repair", command)
        result = fit(job, output, force=force, report=report, origin=origin, amend=amend)
    return result, records[0]


def _require_precision(path: Path, options: FitOptions, table: OpTable) -> None:
    """Raise InputError if the precision that the model came in is none of the target's."""
    names = (*table.precisions, *table.choices)
    if options.precision not in (*names, *table.unavailable) and options.precision == precision_of(path, options.shape):
        raise InputError(
            f"{path}: is quantized in {options.precision}, which {table.target} does not support: quantize the float "
            f"model for it, or convert this one with --precision, one of {', '.join(names)}"
        )


def precision_of(path: Path, options_shape: Mapping[str, tuple[int, ...]] | None = None) -> str:
    """Return the precision of a quantized model, which is that of most of its activations."""
    model, plan, _ = _read(path, FitOptions(target="", shape=options_shape or {}))
    imported = imported_qparams(model, plan)
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
) -> tuple[ir.Model, Plan, tuple[PassRecord, ...]]:
    """Return the float model that a QDQ model represents, the plan with its quantization parameters, and the records of
    the passes that were applied to read them."""
    raw = read(path, options.shape)
    if not is_quantized(raw):
        raise InputError(f"{path} is not quantized: use `dovetail fit` for a float model")
    records = tuple(rewrite(raw) for rewrite in (*rewrites, as_float32, restore_activations))
    return *invert(raw), records


def _read_float(path: Path, options: FitOptions, model: ir.Model) -> ir.Model:
    """Read the float model that a model was quantized from; it must have the same inputs and outputs."""
    reference = read(path, options.shape)
    if is_quantized(reference):
        raise InputError(f"--float {path} is quantized: pass the float model that it was made from")
    as_float32(reference)
    expected, specs = ({spec.name: spec for spec in input_specs(m)} for m in (model, reference))
    for name in (*expected, *specs):
        if expected.get(name) != specs.get(name):
            shapes = [f"of shape {s[name].shape}" if name in s else "missing" for s in (specs, expected)]
            raise InputError(f"--float {path}: input {name!r} is {shapes[0]}, in the quantized model {shapes[1]}")
    outputs, names = ([str(value.name) for value in m.graph.outputs] for m in (model, reference))
    missing = sorted(set(outputs) ^ set(names))
    if missing:
        where = "the quantized model" if missing[0] in names else "the float model"
        raise InputError(f"--float {path}: {where} has no output {missing[0]!r}")
    return reference


@dataclass(frozen=True, slots=True, eq=False)
class _Comparison:
    """What the verdict ``repaired`` compares: the file as given, its float model and plan, the caller's float model."""

    path: Path
    model: ir.Model
    plan: Plan
    reference: ir.Model | None
    job: Job


def _judge(comparison: _Comparison, result: Result, run: Path, folder: Path) -> Verdict:
    """Return the verdict ``repaired``; a model that cannot be run is not checked."""
    job, thresholds = comparison.job, comparison.job.options.thresholds
    data = job.data if job.evaluation is None else job.evaluation.data
    if data.random or not job.request.from_data:
        reason = "there is no calibration data, and random inputs do not tell how models differ: pass --calib DATA"
        return not_checked(reason, thresholds)
    emitted = next((run / artifact.path for artifact in result.artifacts if artifact.name == MODEL), None)
    if emitted is None:
        return not_checked("nothing was emitted, so there is nothing to compare", thresholds)
    count = CLASSIFIED_SAMPLES if class_outputs(comparison.model.graph) else COMPARED_SAMPLES
    samples = list(itertools.islice(data.samples(), count))
    try:
        streams = _streams(comparison, result, run, emitted, folder)
        return judge_repair(streams, samples, data.source, thresholds)
    except BackendError as error:
        return not_checked(f"a model could not be run: {error}", thresholds)


def _streams(comparison: _Comparison, result: Result, run: Path, emitted: Path, folder: Path) -> RepairStreams:
    """Open the models that the verdict ``repaired`` compares."""
    job = comparison.job
    plan = read_plan(run / "plan.json", job.target.table.float_encoding.dtype)
    simulation = with_float_io(literal_run(load_simulation(emitted), folder), plan)
    tail = ir.load(run / TAIL) if (run / TAIL).exists() else None
    given = read(comparison.path, job.options.shape)
    in_half = bool(as_float32(given).changed)
    return RepairStreams(
        graph=comparison.model.graph,
        as_given=with_float_io(literal_run(given if in_half else comparison.path, folder), comparison.plan),
        repaired=followed(simulation, tail, folder),
        reference=None if comparison.reference is None else SessionRun(comparison.reference, Mode.FLOAT, folder),
        types_only=_types_only(given, comparison, plan, result, folder),
    )


def _types_only(given: ir.Model, comparison: _Comparison, plan: Plan, result: Result, folder: Path) -> RunSamples | str:
    """The model as given with the types of the repaired one, as a stream; or why there is none."""
    if comparison.plan.quantized_io:
        return "its inputs or outputs are quantized"
    initializers = comparison.model.graph.initializers
    tensors: dict[str, QParams] = {}
    constants: dict[str, QParams] = {}
    for row in result.plan:  # tensors first: an edge counts only where the tensor itself is float
        storage = (plan.tensors[row.tensor] if row.edge is None else plan.edges[row.edge]).storage
        if isinstance(storage, QParams):
            if row.original_name in initializers:
                constants.setdefault(row.original_name, storage)
            elif row.original_exact:
                tensors.setdefault(row.original_name, storage)
    try:
        return literal_run(change_types(given, Types(tensors, constants)), folder)
    except (InputError, BackendError) as error:
        return str(error)


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
    rewrites = tuple(r for r in (*passes, *later) if (r.changed or r.declined) and r.name != _ONLY_TYPES)
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
