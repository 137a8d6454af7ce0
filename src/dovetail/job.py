"""Everything about a run that can be refused before anything is written: model, target, data, options."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.calibrate.data import Data, InputSpec, input_specs
from dovetail.calibrate.sources import DataLike, ImageOptions, is_random, open_data
from dovetail.calibrate.user_code import load_function
from dovetail.config import MAY_CHANGE, FitOptions, option_values
from dovetail.encoding import Granularity, QParams
from dovetail.errors import InputError
from dovetail.files import file_sha256
from dovetail.model.read import CHANGES, read, require_no_nan
from dovetail.model.suggest_shapes import require_static
from dovetail.op_support import OpTable, Precision, with_block_size
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
from dovetail.targets.option_values import LIMITS
from dovetail.trials.baselines import check_baselines_option
from dovetail.verify.metric import Metric, lower_is_better
from dovetail.verify.verify import Evaluation


@dataclass(frozen=True, slots=True)
class Job:
    """The checked inputs of a run.

    ``imported``: quantization parameters that came with the model and are kept. ``keeps``: patterns that become pins of
    the request once the graph is rewritten. ``changes``: what reading changed in the model so that its file cannot be
    run to compare with; ``as_read``, the model as it was read, then takes its place.
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
    changes: tuple[str, ...] = ()
    imported: ImportedQParams | None = None
    as_read: Path | None = None
    encodings_key: str = ""

    @property
    def reference(self) -> Path:
        """The float model that everything is compared with: the caller's file, or the model as it was read from it."""
        return self.path if self.as_read is None else self.as_read

    @property
    def has_budget(self) -> bool:
        """Whether the caller limits latency or MACs in float."""
        limits = self.options.thresholds
        return limits.max_latency is not None or limits.max_float is not None

    @property
    def target_key(self) -> str:
        """The key that identifies the target with its options, without limits of time and memory."""
        return keyed([self.options.target, _without_limits(self.options.option)]).key

    @property
    def limits_key(self) -> str:
        """The key that identifies the limits of time and memory, which decide whether a build finishes."""
        return keyed({key: value for key, value in self.options.option.items() if key in LIMITS}).key

    def compared(self, model_sha256: str) -> dict[str, str]:
        """What a resumed run must have in common with the one that it continues, by name."""
        options = {key: value for key, value in option_values(self.options).items() if key not in MAY_CHANGE}
        options["option"] = _without_limits(self.options.option)
        return {
            "model": f"SHA-256 {model_sha256}",
            "calibration data": f"SHA-256 {self.data_key}" if self.data_key else f"{self.data.source}, not identified",
            **({"plan": f"SHA-256 {self.plan_key}"} if self.plan_key else {}),
            **({"encodings": f"SHA-256 {self.encodings_key}"} if self.encodings_key else {}),
            **{f"--{key.replace('_', '-')}": _written(value) for key, value in options.items()},
        }


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
    if target.backend.for_file is not None:
        target = replace(target, backend=target.backend.for_file(path))
    check_baselines_option(options.baselines, target.backend, target.name)
    if options.io == "quantized" and target.table.quantizes_edges:
        raise InputError(f"--io quantized is not supported by {target.name}, whose inputs and outputs are float")
    _check_budget(options, target)
    user_plan = None if plan is None else read_plan(plan, target.table.float_encoding.dtype)
    if user_plan is not None:
        if user_plan.target != target.name:
            raise InputError(f"{plan} is a plan for {user_plan.target}, not for {target.name}")
        options = _as_planned(options, user_plan, target)
    target = _with_block_size(options, target)
    request, keeps = _request(options, target)
    model = read(path, options.shape)
    if is_quantized(model):
        raise InputError(
            f"{path} is already quantized: `dovetail fit` requires the float model; `dovetail check` and `dovetail "
            "repair` accept this one"
        )
    require_domains(model, target.table)
    changes = _in_float32(model)
    require_static(model)
    require_no_nan(model)
    specs = input_specs(model)
    if calibration is None:
        raise InputError("no calibration data: add --calib DATA, or --calib random to calibrate on random noise")
    images = image_options(options)
    data = open_data(calibration, specs, images=images)
    held_out = _evaluation(evaluation, metric, options.metric, specs, images)
    if options.max_drop is not None and (held_out is None or held_out.metric is None):
        raise InputError("--max-drop limits the values of a metric: add --eval DATA and --metric MODULE:FUNCTION")
    plan_key = "" if plan is None else file_sha256(*(p for p in (plan, plan.with_suffix(".npz")) if p.exists()))
    key = _data_key(calibration)
    return Job(path, model, options, target, request, keeps, data, key, held_out, user_plan, plan_key, changes)


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
    if function is not None:
        lower_is_better(function, name)
    data_key, metric_key = _data_key(evaluation), _metric_key(function, metric_name)
    key = f"{data_key}|{images}|{metric_key}" if data_key and metric_key else ""
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
            raise InputError(f"--keep {text}: expected GLOB=PRECISION, as in 'decoder.*=fp32'")
        keeps.append(Keep(pattern, _precision(name, target.table)))
    precision = first_precision(options.precision, target.table)
    _refuse_mixed_blocks(precision, keeps, target.table)
    return Request(precision, options.range, quantized_io=options.io == "quantized"), tuple(keeps)


def _refuse_mixed_blocks(precision: Precision, keeps: Sequence[Keep], table: OpTable) -> None:
    """Refuse blocks with float scales beside blocks with integer scales on a target that cannot have both."""
    weights = [precision.weight, *(keep.precision.weight for keep in keeps)]
    both = {Granularity.BLOCK, Granularity.EXPANDED_BLOCK} <= {weight.granularity for weight in weights}
    if both and not table.mixes_blocks:
        last = next(keep for keep in reversed(keeps) if keep.precision.weight.is_blocked)
        raise InputError(
            f"{last}: {table.target} cannot have blocks with float scales (w4a16-bq) beside blocks with integer scales "
            "(w4a16-lpbq) in one model: use the same for all"
        )


def first_precision(name: str, table: OpTable) -> Precision:
    """The precision of this name, or the first of those that it chooses from; one that the target lacks is refused."""
    candidates = table.choices.get(name)
    return _precision(candidates[0] if candidates else name, table)


def _check_budget(options: FitOptions, target: Target) -> None:
    """Refuse a limit of latency where it cannot be known, and a fraction above 1."""
    limits = options.thresholds
    if limits.max_float is not None and limits.max_float > 1:
        raise InputError(f"--max-float {limits.max_float:g}: expected a fraction from 0 to 1")
    if limits.max_latency is None:
        return
    if not target.backend.baselines:
        hint = f"; {target.backend.no_latency}" if target.backend.no_latency else ""
        raise InputError(f"--max-latency: the latency on {target.name} is neither estimated nor measured here{hint}")
    first = target.backend.baselines[0].name
    if options.baselines not in ("first", "all") and first not in options.baselines.split(","):
        raise InputError(
            f"--max-latency compares with the first baseline of {target.name}, {first}, which is not in --baselines "
            f"{options.baselines}"
        )


def _as_planned(options: FitOptions, plan: Plan, target: Target) -> FitOptions:
    """The options with what the caller's own plan decides."""
    options = replace(options, io="quantized" if plan.quantized_io else "float")
    if plan.precision not in target.table.precisions:
        raise InputError(f"the plan has the precision {plan.precision!r}, which {target.name} does not support")
    sizes = [
        choice.storage.encoding.block_size
        for choice in plan.edges.values()
        if isinstance(choice.storage, QParams) and choice.storage.encoding.is_blocked
    ]
    is_blocked = target.table.precisions[plan.precision].weight.is_blocked
    size = Counter(sizes).most_common(1)[0][0] if sizes and is_blocked else None
    return replace(options, precision=plan.precision, block_size=size)


def _with_block_size(options: FitOptions, target: Target) -> Target:
    """The target with the caller's block size; it is refused if no requested precision has blocks."""
    names = (options.precision, *(text.rpartition("=")[2] for text in options.keep))
    weights = [target.table.precisions[name].weight for name in names if name in target.table.precisions]
    blocked = [weight for weight in weights if weight.is_blocked]
    size = options.block_size
    if size is None:
        return target
    if not blocked:
        raise InputError(f"--block-size {size}: {options.precision} has no block-quantized weights")
    for weight in blocked:
        if reason := target.table.why_no_block_size(replace(weight, block_size=size)):
            raise InputError(f"--block-size {size}: {reason}")
    return replace(target, table=with_block_size(target.table, size))


def _emulating(target: Target, samples: int) -> Target:
    """Return the target with another number of samples to run on its emulator."""
    runner = target.backend.runner
    if runner.samples is None:
        raise InputError(f"--emulate is not available for {target.name}, which has no emulator")
    runner = replace(runner, samples=samples, retry_samples=samples)
    return replace(target, backend=replace(target.backend, runner=runner))


def _precision(name: str, table: OpTable) -> Precision:
    precision = table.precisions.get(name)
    if precision is None and name in table.unavailable:
        raise InputError(f"{name} is not available on {table.target}: {table.unavailable[name]}")
    if precision is None:
        names = ", ".join((*table.precisions, *table.choices))
        raise InputError(f"unknown precision {name!r} for target {table.target}; expected one of {names}")
    return precision


def image_options(options: FitOptions) -> ImageOptions:
    """The options on how images are read."""
    return ImageOptions(options.size, options.mean, options.std, options.layout)


def _without_limits(option: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in option.items() if key not in LIMITS}


def _written(value: object) -> str:
    """An option as text: a list as its elements, a mapping as KEY=VALUE."""
    if isinstance(value, dict):
        return " ".join(f"{key}={_written(element)}" for key, element in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _data_key(data: DataLike) -> str:
    """The SHA-256 of the samples' files or arrays; empty if only reading them would tell whether they are the same."""
    if isinstance(data, Mapping):
        return _arrays_sha256(data)
    if not isinstance(data, str | Path):
        return ""
    if is_random(str(data)):
        return hashlib.sha256(str(data).encode()).hexdigest()
    path = Path(data)
    try:
        if not path.is_dir():
            return file_sha256(path) if path.is_file() else ""
        files = sorted(file for file in path.iterdir() if file.is_file())
        names = "|".join(file.name for file in files)
        return hashlib.sha256(f"{names} {file_sha256(*files)}".encode()).hexdigest()
    except OSError:  # a file that cannot be read, and that may not be one of the samples
        return ""


def _arrays_sha256(arrays: Mapping[str, object]) -> str:
    """Hash arrays with their names, dtypes and shapes."""
    state = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if array.dtype.hasobject:
            return ""
        state.update(f"{name} {array.dtype.str} {array.shape}|".encode())
        for row in np.atleast_1d(array):
            state.update(row.tobytes())
    return state.hexdigest()
