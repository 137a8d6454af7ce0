"""Repairing a model that another tool quantized: its weights and scales are kept, its Q/DQ pairs are placed where the
target expects them, and a record lists what was changed and what was missing."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import onnx_ir as ir

from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import DataLike
from dovetail.clock import Reporter, silent
from dovetail.config import FitOptions, require_nearest
from dovetail.encoding import DType, Granularity, QParams
from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.job import Job, prepare
from dovetail.model.external_data import external_files
from dovetail.model.read import read
from dovetail.model.write import write, write_whole
from dovetail.op_support import W4A16_LPBQ, OpTable
from dovetail.pass_record import Pass, PassRecord
from dovetail.passes.as_float32 import as_float32
from dovetail.passes.fuse_gelu import fuse_gelu
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.pipeline import fit
from dovetail.plan.imported_qparams import imported_qparams
from dovetail.qdq.invert import invert, is_quantized
from dovetail.qdq.restore_activations import restore_activations
from dovetail.qdq.to_lpbq import to_lpbq as convert_to_lpbq
from dovetail.repair_record import RECORD, Repair, compare_with_given, compile_as_given, notes_on
from dovetail.repair_verdict import RepairComparison
from dovetail.report.assemble import FitRecord
from dovetail.report.result import Result
from dovetail.run_record import RunOrigin
from dovetail.storage import Plan
from dovetail.targets import open_target
from dovetail.trials.knob import decide_nothing
from dovetail.trials.knobs.float_units import float_units
from dovetail.verify.metric import Metric
from dovetail.verify.repaired import NAME as VERDICT

__all__ = ["RECORD", "Repair", "precision_of", "repair"]

FLOAT = "float.onnx"
# The data that the graph is run on if none is given, and the note about it.
_NOISE = "random"
_NO_DATA = (
    "no calibration data was given: every scale came with the model or is fixed by the target, none was calibrated"
)
# Dtype of the activations -> the precision of the model.
_PRECISIONS = {DType.F8E4M3: "fp8", DType.S8: "w8a8", DType.U8: "w8a8", DType.S16: "w8a16", DType.U16: "w8a16"}


def repair(
    path: Path,
    options: FitOptions,
    output: Path,
    *,
    calibration: DataLike | None,
    evaluation: DataLike | None = None,
    metric: Metric | None = None,
    float_model: Path | None = None,
    to_lpbq: bool = False,
    force: bool = False,
    report: Reporter = silent,
    command: str = "dovetail.repair",
) -> tuple[Result, Repair]:
    """Run ``fit`` on the float model that a QDQ model represents, with the scales and zero points that came with it.

    The verdict ``repaired`` compares the result with the model as given: by their distance to ``float_model``, which
    the model was quantized from, or else directly. Without calibration data no scale may be missing; metrics are then
    measured on random inputs, which the result says. ``to_lpbq``: the block-quantized int4 weights get integer scales.
    """
    require_nearest(options, "`dovetail repair` keeps the integers of the model as given")
    target = open_target(options.target, options.option)
    if to_lpbq and W4A16_LPBQ.name not in target.table.precisions:
        raise InputError(f"--to-lpbq: {target.name} has no block-quantized weights with integer scales")
    conversion = (partial(convert_to_lpbq, table=target.table),) if to_lpbq else ()
    model, given_plan, passes = _read(path, options, target.rewrites.quantized, conversion)
    if to_lpbq:
        options = _in_blocks(options, given_plan, target.table)
    _require_precision(path, options, target.table)
    imported = imported_qparams(model, given_plan)
    reference = None if float_model is None else _read_float(float_model, options, model)
    records: list[Repair] = []

    def amend(result: Result, built: FitRecord | None, run: Path) -> Result:
        for file in written:
            shutil.copyfile(file, run / file.name.replace(path.name, FLOAT, 1))
        sha256 = file_sha256(path, *external_files(path))
        before = compile_as_given(path, target, Path(folder))
        record = compare_with_given(path, sha256, result, imported, before, passes)
        records.append(record)
        write_whole(run / RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1))
        notes = (*result.notes, *((_NO_DATA,) if calibration is None else ()), *notes_on(record))
        normalized, *others = result.verdicts.items()
        verdicts = dict([normalized, (VERDICT, comparison.judge_build(built, result.plan, run)), *others])
        return replace(result, model_sha256=sha256, passes=(*passes, *result.passes), notes=notes, verdicts=verdicts)

    with tempfile.TemporaryDirectory(prefix="dovetail-repair-") as folder:
        written = write(model, Path(folder) / path.name)
        data = _NOISE if calibration is None else calibration
        job = prepare(written[0], options, calibration=data, evaluation=evaluation, metric=metric)
        request = replace(job.request, from_data=calibration is not None)
        job = replace(job, imported=imported, request=request)
        comparison = RepairComparison(path, model, given_plan, reference, job, Path(folder))
        origin = RunOrigin("repair", command)
        result = fit(_with_knobs(job, comparison), output, force=force, report=report, origin=origin, amend=amend)
    return result, records[0]


def _in_blocks(options: FitOptions, given: Plan, table: OpTable) -> FitOptions:
    """The options with the precision of converted weights; each weight keeps its own block size, so the smallest one
    that the target supports decides which layers are rewritten for blocks. Without any, the options stay as they are.
    """
    encodings = [choice.storage.encoding for choice in given.edges.values() if isinstance(choice.storage, QParams)]
    expanded = [e for e in encodings if e.granularity is Granularity.EXPANDED_BLOCK]
    sizes = [e.block_size for e in expanded if not table.why_no_block_size(e)]
    return replace(options, precision=W4A16_LPBQ.name, block_size=min(sizes)) if sizes else options


def _with_knobs(job: Job, comparison: RepairComparison) -> Job:
    """The job with the knob of a repair: what the target's own knobs choose, the model as given has chosen already."""
    knobs = tuple(replace(knob, decide=decide_nothing) for knob in job.target.knobs)
    more = (float_units(comparison.judge_variant),) if comparison.checkable else ()
    return replace(job, target=replace(job.target, knobs=(*more, *knobs)))


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
    path: Path, options: FitOptions, rewrites: tuple[Pass, ...] = (), conversion: tuple[Pass, ...] = ()
) -> tuple[ir.Model, Plan, tuple[PassRecord, ...]]:
    """Return the float model that a QDQ model represents, the plan with its quantization parameters, and the records of
    the passes that were applied to read them."""
    raw = read(path, options.shape)
    if not is_quantized(raw):
        raise InputError(f"{path} is not quantized: use `dovetail fit` for a float model")
    # Gelu first: in float32 the float16 constants of one would no longer be recognized.
    passes = (*rewrites, infer_shapes, fuse_gelu, as_float32, restore_activations, *conversion)
    records = tuple(change(raw) for change in passes)
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
