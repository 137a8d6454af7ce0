"""``--encodings FILE``: a float model is quantized with the scales of an encodings file instead of calibrated ones."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

from dovetail.calibrate.moved_tensors import moved_tensors
from dovetail.calibrate.sources import DataLike
from dovetail.catalog import rules_for
from dovetail.checking import statistics
from dovetail.clock import Reporter, silent
from dovetail.config import FitOptions, options_from
from dovetail.encoding import Encoding, Granularity, QParams
from dovetail.encodings.as_plan import GivenPlan, given_plan
from dovetail.encodings.read import read_encodings
from dovetail.encodings.shapes import LINEAR
from dovetail.errors import InputError, MissingScaleError
from dovetail.files import file_sha256
from dovetail.finding import Finding, Severity
from dovetail.float_graph import prepared
from dovetail.job import Job, prepare
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import is_op
from dovetail.model.read import Shapes, read
from dovetail.model.suggest_shapes import require_static
from dovetail.model.write import write, write_whole
from dovetail.op_support import OpTable, Precision
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.pipeline import fit
from dovetail.plan.blocks import WEIGHT
from dovetail.plan.constraints import build_problem
from dovetail.plan.imported_qparams import imported_qparams
from dovetail.plan.make import make_plan
from dovetail.plan.pins import imported_pins
from dovetail.plan.requested_weights import RequestedWeights
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.invert import is_quantized
from dovetail.repair_record import QParamsKept, qparams_kept
from dovetail.report.assemble import FitRecord
from dovetail.report.result import Result
from dovetail.rules.check import check
from dovetail.rules.check_input import CheckInput
from dovetail.run_record import RunOrigin
from dovetail.stats import DataInfo, Stats
from dovetail.storage import Plan
from dovetail.targets import open_target
from dovetail.trials.knob import decide_nothing
from dovetail.verify.metric import Metric

RECORD = "encodings.json"
# The data that outputs are compared on if none is given.
_NOISE = "random"
_NO_DATA = "no calibration data was given: every scale came with the encodings or is fixed by the target"
# How many names a note lists.
_LISTED = 8
# The codes of rules on encodings files.
_FILES = "Q7"
_NO_STATS = Stats({}, DataInfo("", 0, ""))


@dataclass(frozen=True, slots=True)
class EncodingsUse:
    """What became of an encodings file: ``encodings.json`` in the run directory.

    Entries of which scale and zero point were kept or ``changed`` (with the reason), tensors without an entry that were
    quantized (``missing``, with where their scale comes from), and entries that were not used: of tensors that the
    graph does not quantize (``unused``) or that the model does not have (``surplus``).
    """

    file: str
    sha256: str
    version: str
    kept: tuple[str, ...]
    changed: dict[str, str]
    missing: dict[str, str]
    unused: tuple[str, ...]
    surplus: tuple[str, ...]
    ignored: tuple[str, ...]


def fit_with_encodings(
    path: Path,
    options: FitOptions,
    output: Path,
    *,
    encodings: Path,
    calibration: DataLike | None,
    evaluation: DataLike | None = None,
    metric: Metric | None = None,
    force: bool = False,
    resume: bool = False,
    report: Reporter = silent,
    origin: RunOrigin = RunOrigin("fit", "dovetail.fit"),  # noqa: B008 - a frozen record
) -> Result:
    """Run ``fit`` with the scales and zero points of an encodings file.

    Without calibration data no scale may be missing; outputs are then compared on random inputs, which the result says.
    """
    file = read_encodings(encodings)
    data = _NOISE if calibration is None else calibration
    job = prepare(path, options, calibration=data, evaluation=evaluation, metric=metric)
    given = plan_for(job.model, encodings)
    imported = imported_qparams(job.model, given.plan, from_file=True)
    sha256 = file_sha256(encodings)

    def amend(result: Result, built: FitRecord | None, run: Path) -> Result:
        kept = qparams_kept(result, imported, biases=False)
        use = EncodingsUse(
            encodings.name, sha256, file.version, kept.kept, kept.changed, kept.missing, kept.removed, given.surplus,
            file.ignored,
        )  # fmt: skip
        write_whole(run / RECORD, msgspec.json.format(msgspec.json.encode(use), indent=1))
        return replace(result, notes=(*result.notes, *_notes(use, kept, calibration is None)))

    request = replace(job.request, from_data=calibration is not None)
    job = replace(job, imported=imported, request=request, encodings_key=sha256)
    return fit(_without_choices(job), output, force=force, resume=resume, report=report, origin=origin, amend=amend)


def check_with_encodings(
    path: Path,
    values: Mapping[str, Any],
    *,
    encodings: Path,
    calibration: DataLike | None = None,
) -> tuple[Finding, ...]:
    """Return the findings on the plan that ``fit`` would make from a float model and an encodings file.

    ``values``: the options target, shape and option. Without calibration data no scale may be missing, unless the
    target has rules on encodings files: they say what becomes of the tensor, and no plan is checked. The same holds
    for a file that such a rule reports as an error, but not if an entry does not fit its tensor.
    """
    file = read_encodings(encodings)
    try:
        subject = _planned(path, values, encodings, calibration)
    except InputError as error:
        reported = isinstance(error, MissingScaleError) and _predicts_missing(values)
        findings = _without_plan(path, values, encodings)
        if not reported and not any(f.code.startswith(_FILES) and f.severity is Severity.ERROR for f in findings):
            raise
        return findings
    target = open_target(str(values["target"]), values.get("option") or {})
    return check(replace(subject, encodings=file), rules_for(target))


def _predicts_missing(values: Mapping[str, Any]) -> bool:
    """Whether the target has rules on encodings files, which say what becomes of a tensor without an entry."""
    rules = rules_for(open_target(str(values["target"]), values.get("option") or {}))
    return any(rule.code.startswith(_FILES) and rule.check is not None for rule in rules)


def _without_plan(path: Path, values: Mapping[str, Any], encodings: Path) -> tuple[Finding, ...]:
    """The findings on a file that no plan can be made from, as when the scales of some tensors are missing."""
    target = open_target(str(values["target"]), values.get("option") or {})
    raw = read(path, values.get("shape") or {})
    plan_for(raw, encodings)  # an error if an entry does not fit its tensor: no finding says that
    require_static(raw)
    infer_shapes(raw)
    file = read_encodings(encodings)
    return check(
        CheckInput(prepared(raw, target), target.table, target.facts, raw=raw, encodings=file), rules_for(target)
    )


def _planned(path: Path, values: Mapping[str, Any], encodings: Path, calibration: DataLike | None) -> CheckInput:
    """The graph and the plan that ``fit`` would make."""
    options = options_from(with_precision(values, path, encodings))
    job = prepare(path, options, calibration=_NOISE if calibration is None else calibration)
    imported = imported_qparams(job.model, plan_for(job.model, encodings).plan, from_file=True)
    table, precision = job.target.table, job.request.precision
    model = prepared(job.model, job.target, RequestedWeights(precision, imported=imported))
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        sample = next(iter(job.data.samples()))
        moved = moved_tensors(job.model, model, imported.tensors, sample, Path(folder))
    imported = replace(imported, moved=moved)
    stats = None if calibration is None else statistics(model, table, calibration)
    request = replace(job.request, from_data=stats is not None)
    request = request.pinned(imported_pins(build_problem(model, table), imported, precision))
    plan = make_plan(model, table, stats or _NO_STATS, request, imported)
    infer_shapes(job.model)
    return CheckInput(model, table, job.target.facts, plan, stats, job.model)


@contextmanager
def quantized_model(path: Path, encodings: Path, shapes: Shapes) -> Iterator[Path]:
    """The QDQ model of a float model and an encodings file, as a temporary file of the same name.

    Tensors without an entry, and those that the file has as float, have no Q/DQ pair. Outputs of operators that only
    move data have that of their input: files below 2.0.0 have no entries for them.
    """
    model = read(path, shapes)
    if is_quantized(model):
        raise InputError(f"{path} is already quantized: --encodings requires the float model that they belong to")
    infer_shapes(model)
    plan = with_passed_through(model, plan_for(model, encodings).plan)
    quantized = replace(
        plan,
        tensors={name: choice for name, choice in plan.tensors.items() if isinstance(choice.storage, QParams)},
        edges={edge: choice for edge, choice in plan.edges.items() if isinstance(choice.storage, QParams)},
    )
    with tempfile.TemporaryDirectory(prefix="dovetail-encodings-") as folder:
        yield write(emit_qdq(model, quantized), Path(folder) / path.name)[0]


def with_passed_through(model: ir.Model, plan: Plan) -> Plan:
    """The plan in which the output of an operator that only moves data is stored as its input, if it has no entry."""
    tensors = dict(plan.tensors)
    for node in model.graph:
        source = node.inputs[0] if is_op(node, *DATA_MOVEMENT_OPS) else None
        choice = None if source is None else tensors.get(str(source.name))
        if choice is not None and isinstance(choice.storage, QParams):
            tensors |= {str(output.name): choice for output in node.outputs if output.name not in tensors}
    return replace(plan, tensors=tensors)


def plan_for(model: ir.Model, encodings: Path) -> GivenPlan:
    """The plan that an encodings file is for a model; an error names the file."""
    try:
        return given_plan(model, read_encodings(encodings))
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(f"{encodings}: ") else f"{encodings}: {text}") from error


def _without_choices(job: Job) -> Job:
    """The job without what the target's knobs choose: the encodings have chosen already."""
    knobs = tuple(replace(knob, decide=decide_nothing) for knob in job.target.knobs)
    return replace(job, target=replace(job.target, knobs=knobs))


def _notes(use: EncodingsUse, kept: QParamsKept, is_noise: bool) -> tuple[str, ...]:
    notes = [
        f"{use.file}: {len(use.kept)} scales and zero points are those of the encodings, {len(kept.changed)} have "
        f"others, {len(kept.missing)} had none, {len(use.unused)} entries are not used; {RECORD} lists them"
    ]
    if use.surplus:
        more = f" and {len(use.surplus) - _LISTED} more" if len(use.surplus) > _LISTED else ""
        notes.append(f"{use.file}: the model has no tensor {', '.join(map(repr, use.surplus[:_LISTED]))}{more}")
    return (*notes, *((_NO_DATA,) if is_noise else ()))


def with_precision(values: Mapping[str, Any], model: Path, encodings: Path) -> dict[str, Any]:
    """The options of a run with the precision, and the block size, of most entries of an encodings file."""
    if values.get("precision") is not None or "target" not in values:
        return dict(values)
    graph = read(model, values.get("shape") or {})
    given = plan_for(graph, encodings)
    table = open_target(str(values["target"]), values.get("option") or {}).table
    activation, weight = _most_frequent(graph, given.plan, encodings)
    name = next((p.name for p in table.precisions.values() if _is(p, activation, weight)), None)
    if name is None:
        raise InputError(
            f"{encodings}: most weights are {weight.dtype} ({weight.granularity}) and most activations "
            f"{activation.dtype}, which is no precision of {table.target}: add --precision, one of "
            f"{', '.join(_quantized(table))}"
        )
    if weight.is_blocked and (reason := table.why_no_block_size(weight)):
        raise InputError(f"{encodings}: most weights have blocks of {weight.block_size}, but {reason}")
    size = {"block_size": weight.block_size} if weight.is_blocked and values.get("block_size") is None else {}
    return {**values, "precision": name, **size}


def _most_frequent(graph: ir.Model, plan: Plan, encodings: Path) -> tuple[Encoding, Encoding]:
    """The encodings of most activations and of most weights of linear layers."""
    linear = {str(node.name) for node in graph.graph if node.op_type in LINEAR}
    on_weights = [choice.storage for edge, choice in plan.edges.items() if edge.index == WEIGHT and edge.node in linear]
    activations = Counter(c.storage.encoding for c in plan.tensors.values() if isinstance(c.storage, QParams))
    weights = Counter(storage.encoding for storage in on_weights if isinstance(storage, QParams))
    if not activations or not weights:
        which = "a weight" if activations else "an activation"
        raise InputError(
            f"{encodings}: no entry quantizes {which} of this model, so the precision cannot be taken from the file; "
            "check that the tensor names match, or add --precision"
        )
    return activations.most_common(1)[0][0], weights.most_common(1)[0][0]


def _is(precision: Precision, activation: Encoding, weight: Encoding) -> bool:
    """Whether a precision has these encodings; a scale of the whole weight counts as one per channel."""
    bits = (precision.activation.dtype, precision.weight.dtype)
    if not all(dtype.is_integer for dtype in bits):
        return False
    if [dtype.bits for dtype in bits] != [activation.dtype.bits, weight.dtype.bits]:
        return False
    per_channel = (Granularity.TENSOR, Granularity.AXIS)
    if weight.granularity in per_channel:
        return precision.weight.granularity in per_channel
    return weight.granularity is precision.weight.granularity


def _quantized(table: OpTable) -> list[str]:
    return [name for name, precision in table.precisions.items() if precision.activation.dtype.is_integer]
