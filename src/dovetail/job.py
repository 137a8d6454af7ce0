"""Everything about a run that can be refused before anything is written: model, target, data, wishes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from dovetail.calibrate.data import Data, InputSpec, input_specs
from dovetail.calibrate.sources import DataLike, ImageOptions, is_random, open_data
from dovetail.calibrate.user_code import load_function
from dovetail.config import FitOptions
from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.model.read import read, require_numbers, require_static
from dovetail.op_support import OpTable, Precision
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.request import Keep, Request
from dovetail.plan.rows import read_plan
from dovetail.qdq.invert import is_quantized
from dovetail.stages import keyed
from dovetail.storage import Plan
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.trials.baselines import check_wish
from dovetail.verify.metric import Metric
from dovetail.verify.verify import Evaluation


@dataclass(frozen=True, slots=True)
class Job:
    """A run that can start.

    ``refused``: why the target cannot do what was asked, for the result. ``imported``: quantization parameters that
    came with the model, to be kept. ``keeps``: patterns that become pins of the request once the graph is rewritten.
    """

    path: Path
    model: ir.Model
    options: FitOptions
    target: Target
    request: Request
    keeps: tuple[Keep, ...]
    data: Data
    data_key: str
    evaluation: Evaluation | None
    plan: Plan | None
    plan_key: str
    refused: str = ""
    imported: ImportedQParams | None = None

    @property
    def target_key(self) -> str:
        """What tells one target from another, its options included."""
        return keyed([self.options.target, dict(self.options.option)]).key


def prepare(
    path: Path,
    options: FitOptions,
    *,
    calibration: DataLike | None,
    evaluation: DataLike | None = None,
    metric: Metric | None = None,
    plan: Path | None = None,
) -> Job:
    """Read and check what was given; every refusal is one sentence that names the culprit."""
    target = open_target(options.target, options.option)
    if options.emulate is not None:
        target = _emulating(target, options.emulate)
    check_wish(options.baselines, target.backend, target.name)
    if options.io == "quantized" and target.table.quantizes_edges:
        raise InputError(f"--io quantized: {target.name} takes and gives real numbers")
    request, keeps = _request(options, target)
    model = read(path, options.shape)
    if is_quantized(model):
        raise InputError(f"{path}: is quantized already: fit takes the float model, `dovetail check` takes this one")
    require_static(model)
    require_numbers(model)
    specs = input_specs(model)
    if calibration is None:
        raise InputError("no calibration data: say --calib FILE, or --calib random if noise is really what is wanted")
    images = ImageOptions(options.size, options.mean, options.std, options.layout)
    data = open_data(calibration, specs, images=images)
    held_out = _evaluation(evaluation, metric, options.metric, specs, images)
    given = None if plan is None else read_plan(plan, target.table.float_encoding.dtype)
    if given is not None:
        if given.target != target.name:
            raise InputError(f"{plan}: is a plan for {given.target}, not for {target.name}")
        options = replace(options, precision=given.precision, io="quantized" if given.quantized_io else "float")
    plan_key = "" if plan is None else file_sha256(*(p for p in (plan, plan.with_suffix(".npz")) if p.exists()))
    key, refused = _data_key(calibration, images), _not_here(options, target)
    return Job(path, model, options, target, request, keeps, data, key, held_out, given, plan_key, refused)


def _evaluation(
    evaluation: DataLike | None,
    metric: Metric | None,
    metric_name: str | None,
    specs: tuple[InputSpec, ...],
    images: ImageOptions,
) -> Evaluation | None:
    """The held-out data with the metric, which is a function or the name of one."""
    if evaluation is None:
        if metric_name is not None or metric is not None:
            raise InputError("a metric needs held-out data: say --eval DATA")
        return None
    name = metric_name or str(getattr(metric, "__qualname__", type(metric).__name__))
    found = metric or (load_function(metric_name) if metric_name else None)
    data_key, metric_key = _data_key(evaluation, images), _metric_key(found, metric_name)
    key = f"{data_key}|{metric_key}" if data_key and metric_key else ""
    return Evaluation(open_data(evaluation, specs, images=images, extra=True), found, name, key)


def _metric_key(metric: Metric | None, name: str | None) -> str:
    """What tells whether a metric is that of an earlier run: its name and the file that it is in; else nothing does."""
    if metric is None:
        return "no metric"
    code = getattr(metric, "__code__", None)
    file = None if code is None else Path(code.co_filename)
    return f"{name}:{file_sha256(file)}" if name and file is not None and file.is_file() else ""


def _request(options: FitOptions, target: Target) -> tuple[Request, tuple[Keep, ...]]:
    keeps = []
    for text in options.keep:
        pattern, equals, name = text.rpartition("=")
        if not equals or not pattern:
            raise InputError(f"--keep {text}: must be GLOB=PRECISION, as in 'decoder.*=fp32'")
        keeps.append(Keep(pattern, _precision(name, target.table)))
    candidates = target.table.choices.get(options.precision)
    precision = _precision(candidates[0] if candidates else options.precision, target.table)
    return Request(precision, options.range, quantized_io=options.io == "quantized"), tuple(keeps)


def _emulating(target: Target, samples: int) -> Target:
    """The target with another number of samples on its emulator."""
    runner = target.backend.runner
    if runner.samples is None:
        raise InputError(f"--emulate: {target.name} has no emulator")
    runner = replace(runner, samples=samples, retry_samples=samples)
    return replace(target, backend=replace(target.backend, runner=runner))


def _precision(name: str, table: OpTable) -> Precision:
    found = table.precisions.get(name)
    if found is None and name in table.unavailable:  # the result will say why, nothing is planned
        return next(iter(table.precisions.values()))
    if found is None:
        known = ", ".join((*table.precisions, *table.choices))
        raise InputError(f"unknown precision {name!r} for target {table.target}; there is {known}")
    return found


def _not_here(options: FitOptions, target: Target) -> str:
    """Why a precision that was asked for is not to be had on this target; empty where it is."""
    asked = (options.precision, *(text.rpartition("=")[2] for text in options.keep))
    why = target.table.unavailable
    name = next((name for name in asked if name in why), None)
    return "" if name is None else f"{name} is not to be had on {target.name}: {why[name]}"


def _data_key(data: DataLike, images: ImageOptions) -> str:
    """What tells whether the samples of an earlier run are the same; empty when only reading them would tell."""
    if not isinstance(data, str | Path):
        return ""
    if is_random(str(data)):
        return str(data)
    path = Path(data)
    if not path.exists():
        return ""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return "|".join([repr(images), *(f"{f.resolve()}:{f.stat().st_size}:{f.stat().st_mtime_ns}" for f in files)])
