"""Everything about a run that can be refused before anything is written: model, target, data, options."""

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
from dovetail.model.read import CHANGES, read, require_no_nan
from dovetail.model.suggest_shapes import require_static
from dovetail.op_support import OpTable, Precision
from dovetail.passes.as_float32 import as_float32, has_float16
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.request import Keep, Request
from dovetail.plan.rows import read_plan
from dovetail.qdq.invert import is_quantized
from dovetail.rules.domains import require_domains
from dovetail.stages import keyed
from dovetail.storage import Plan
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.trials.baselines import check_baselines_option
from dovetail.verify.metric import Metric
from dovetail.verify.verify import Evaluation


@dataclass(frozen=True, slots=True)
class Job:
    """The checked inputs of a run.

    ``refused``: why the target cannot do what was requested; it goes into the result. ``imported``: quantization
    parameters that came with the model and are kept. ``keeps``: patterns that become pins of the request once the graph
    is rewritten. ``changes``: what reading changed in the model so that its file cannot be run to compare with;
    ``as_read``, the model as it was read, then takes its place.
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
    changes: tuple[str, ...] = ()
    imported: ImportedQParams | None = None
    as_read: Path | None = None

    @property
    def reference(self) -> Path:
        """The float model that everything is compared with: the caller's file, or the model as it was read from it."""
        return self.path if self.as_read is None else self.as_read

    @property
    def target_key(self) -> str:
        """The key that identifies the target with its options."""
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
    """Read and check the inputs of a run; every error is one sentence that names what is wrong."""
    target = open_target(options.target, options.option)
    if options.emulate is not None:
        target = _emulating(target, options.emulate)
    check_baselines_option(options.baselines, target.backend, target.name)
    if options.io == "quantized" and target.table.quantizes_edges:
        raise InputError(f"--io quantized: not supported by {target.name}, whose inputs and outputs are float")
    request, keeps = _request(options, target)
    model = read(path, options.shape)
    if is_quantized(model):
        raise InputError(
            f"{path}: is already quantized: `dovetail fit` requires the float model; `dovetail check` and `dovetail "
            "repair` accept this one"
        )
    require_domains(model, target.table)
    changes = _in_float32(model)
    require_static(model)
    require_no_nan(model)
    specs = input_specs(model)
    if calibration is None:
        raise InputError("no calibration data: add --calib DATA, or --calib random to calibrate on random noise")
    images = ImageOptions(options.size, options.mean, options.std, options.layout)
    data = open_data(calibration, specs, images=images)
    held_out = _evaluation(evaluation, metric, options.metric, specs, images)
    user_plan = None if plan is None else read_plan(plan, target.table.float_encoding.dtype)
    if user_plan is not None:
        if user_plan.target != target.name:
            raise InputError(f"{plan}: is a plan for {user_plan.target}, not for {target.name}")
        options = replace(options, precision=user_plan.precision, io="quantized" if user_plan.quantized_io else "float")
    plan_key = "" if plan is None else file_sha256(*(p for p in (plan, plan.with_suffix(".npz")) if p.exists()))
    key, refused = _data_key(calibration, images), _unavailable(options, target)
    return Job(path, model, options, target, request, keeps, data, key, held_out, user_plan, plan_key, refused, changes)


def _in_float32(model: ir.Model) -> tuple[str, ...]:
    """Convert a float16 or bfloat16 model to float32, in place, and return all that differs from its file."""
    changes: tuple[str, ...] = model.meta[CHANGES]
    if not has_float16(model):
        return changes
    count = len(as_float32(model).changed)
    note = f"{count} float16 or bfloat16 tensors, inputs and outputs included, are read as float32"
    return (*changes, note)


def _evaluation(
    evaluation: DataLike | None,
    metric: Metric | None,
    metric_name: str | None,
    specs: tuple[InputSpec, ...],
    images: ImageOptions,
) -> Evaluation | None:
    """Return the held-out data with the metric, which is a function or the name of one."""
    if evaluation is None:
        if metric_name is not None or metric is not None:
            raise InputError("a metric requires held-out data: add --eval DATA")
        return None
    name = metric_name or str(getattr(metric, "__qualname__", type(metric).__name__))
    function = metric or (load_function(metric_name) if metric_name else None)
    data_key, metric_key = _data_key(evaluation, images), _metric_key(function, metric_name)
    key = f"{data_key}|{metric_key}" if data_key and metric_key else ""
    return Evaluation(open_data(evaluation, specs, images=images, extra=True), function, name, key)


def _metric_key(metric: Metric | None, name: str | None) -> str:
    """The key that identifies a metric: its name and the hash of its file; empty if there is no such file."""
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
    """Return the target with another number of samples to run on its emulator."""
    runner = target.backend.runner
    if runner.samples is None:
        raise InputError(f"--emulate: {target.name} has no emulator")
    runner = replace(runner, samples=samples, retry_samples=samples)
    return replace(target, backend=replace(target.backend, runner=runner))


def _precision(name: str, table: OpTable) -> Precision:
    precision = table.precisions.get(name)
    if precision is None and name in table.unavailable:  # nothing is planned with it: the result says why
        return next(iter(table.precisions.values()))
    if precision is None:
        names = ", ".join((*table.precisions, *table.choices))
        raise InputError(f"unknown precision {name!r} for target {table.target}; expected one of {names}")
    return precision


def _unavailable(options: FitOptions, target: Target) -> str:
    """Say why a requested precision is not available on this target; empty if all are."""
    requested = (options.precision, *(text.rpartition("=")[2] for text in options.keep))
    reasons = target.table.unavailable
    name = next((name for name in requested if name in reasons), None)
    return "" if name is None else f"{name} is not available on {target.name}: {reasons[name]}"


def _data_key(data: DataLike, images: ImageOptions) -> str:
    """The key that identifies the samples; empty if only reading them would tell whether they are the same."""
    if not isinstance(data, str | Path):
        return ""
    if is_random(str(data)):
        return str(data)
    path = Path(data)
    if not path.exists():
        return ""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return "|".join([repr(images), *(f"{f.resolve()}:{f.stat().st_size}:{f.stat().st_mtime_ns}" for f in files)])
