"""The Python API: the commands as functions, which also accept arrays and functions in place of files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx

from dovetail.calibrate.sources import DataLike
from dovetail.clock import Reporter, silent
from dovetail.config import options_from
from dovetail.errors import InputError
from dovetail.finding import Finding
from dovetail.job import prepare
from dovetail.pipeline import fit as run_fit
from dovetail.report.result import Result
from dovetail.report.sensitivity import SensitivityResult
from dovetail.verify.metric import Metric

ModelLike = str | Path | onnx.ModelProto


def fit(
    model: ModelLike,
    *,
    target: str,
    calibration: DataLike | None = None,
    output: str | Path,
    evaluation: DataLike | None = None,
    metric: str | Metric | None = None,
    plan: str | Path | None = None,
    encodings: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    report: Reporter = silent,
    **options: Any,
) -> Result:
    """Quantize a model for a target, compile it with the target's compiler, and verify the result.

    ``options`` are those of the command line: ``precision``, ``range``, ``rounding``, ``keep``, ``io``, ``shape``,
    ``option``, ``range_repair``, ``require``, ``max_drop``, ``min_sqnr``, ``thresholds``, and for images ``size``,
    ``mean``, ``std``, ``layout``. ``encodings``: a file with scales and zero points, instead of calibrated ones;
    ``calibration`` is then only required for tensors that it lacks.
    """
    values = {"target": target, **options}
    if isinstance(metric, str):
        values["metric"] = metric
    if encodings is not None:
        return _fit_with_encodings(
            model, values, Path(encodings), plan, calibration=calibration, output=Path(output), evaluation=evaluation,
            metric=None if isinstance(metric, str) else metric, force=force, resume=resume, report=report,
        )  # fmt: skip
    fit_options = options_from(values, planned=plan is not None)
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        job = prepare(
            _path(model, Path(folder)),
            fit_options,
            calibration=calibration,
            evaluation=evaluation,
            metric=None if isinstance(metric, str) else metric,
            plan=None if plan is None else Path(plan),
        )
        return run_fit(job, Path(output), force=force, resume=resume, report=report)


def _fit_with_encodings(
    model: ModelLike, values: dict[str, Any], encodings: Path, plan: str | Path | None, **arguments: Any
) -> Result:
    from dovetail.encodings_run import fit_with_encodings, with_precision

    if plan is not None:
        raise InputError("encodings cannot be combined with plan: both decide how tensors are stored")
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        path = _path(model, Path(folder))
        options = options_from(with_precision(values, path, encodings))
        return fit_with_encodings(path, options, encodings=encodings, **arguments)


def check(
    model: ModelLike,
    *,
    target: str,
    calibration: DataLike | None = None,
    shape: Mapping[str, tuple[int, ...]] | None = None,
    option: Mapping[str, str] | None = None,
    encodings: str | Path | None = None,
) -> tuple[Finding, ...]:
    """Return the findings on a model for a target, without quantizing it; of a float model, also with ``encodings``."""
    from dovetail.checking import check_file
    from dovetail.encodings_run import check_with_encodings
    from dovetail.targets import open_target

    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        if encodings is not None:
            values = {"target": target, "shape": shape or {}, "option": option or {}}
            path = _path(model, Path(folder))
            return check_with_encodings(path, values, encodings=Path(encodings), calibration=calibration)
        return check_file(_path(model, Path(folder)), open_target(target, option), shape or {}, calibration)


def repair(
    model: ModelLike,
    *,
    target: str,
    calibration: DataLike | None = None,
    output: str | Path,
    evaluation: DataLike | None = None,
    metric: str | Metric | None = None,
    float_model: ModelLike | None = None,
    to_lpbq: bool = False,
    encodings: str | Path | None = None,
    force: bool = False,
    report: Reporter = silent,
    **options: Any,
) -> Result:
    """Place the Q/DQ pairs of a QDQ model where the target expects them, and keep its scales and zero points.

    ``repair.json`` lists what was changed and what was missing. ``precision`` defaults to that of most activations.
    ``float_model`` is the model that it was quantized from: the verdict ``repaired`` then compares both with it.
    Without ``calibration`` no scale may be missing, and outputs are compared on random inputs. ``to_lpbq``: int4
    weights with float scales per block get integer scales where possible, which changes numbers. With
    ``encodings``, ``model`` is the float model that they belong to.
    """
    from dovetail.encodings_run import quantized_model
    from dovetail.repairs import precision_of
    from dovetail.repairs import repair as run_repair

    values = {"target": target, **options}
    if isinstance(metric, str):
        values["metric"] = metric
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dovetail-")))
        path = _path(model, folder)
        reference = None if float_model is None else _path(float_model, folder, "float.onnx")
        if encodings is not None:
            reference = reference or path
            path = stack.enter_context(quantized_model(path, Path(encodings), values.get("shape") or {}))
        if "precision" not in values:
            values["precision"] = precision_of(path, values.get("shape"))
        result, _ = run_repair(
            path,
            options_from(values),
            Path(output),
            calibration=calibration,
            evaluation=evaluation,
            metric=None if isinstance(metric, str) else metric,
            float_model=reference,
            to_lpbq=to_lpbq,
            force=force,
            report=report,
        )
    return result


def sensitivity(
    model: ModelLike,
    *,
    target: str,
    calibration: DataLike,
    output: str | Path,
    evaluation: DataLike | None = None,
    metric: str | Metric | None = None,
    samples: int | None = None,
    first_order: bool = False,
    force: bool = False,
    resume: bool = False,
    report: Reporter = silent,
    **options: Any,
) -> SensitivityResult:
    """Measure what quantizing every operator and block alone costs; nothing is compiled.

    ``samples``: how many of ``evaluation``, or else of ``calibration``, are used; by default 16 for SQNR and all of
    ``evaluation`` for the metric. ``first_order``: estimate, and measure only what costs most. ``options`` are those of
    ``fit`` that decide how the model is quantized: ``precision``, ``range``, ``keep``, ``shape``, ``option``, ...
    """
    from dovetail.sensitivity_run import SensitivityOptions
    from dovetail.sensitivity_run import sensitivity as run_sensitivity

    values = {"target": target, **options}
    if isinstance(metric, str):
        values["metric"] = metric
    chosen = SensitivityOptions(first_order, samples)
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        job = prepare(
            _path(model, Path(folder)),
            options_from(values),
            calibration=calibration,
            evaluation=evaluation,
            metric=None if isinstance(metric, str) else metric,
        )
        return run_sensitivity(job, Path(output), chosen, force=force, resume=resume, report=report)


def verify_device(run: str | Path, *, device_outputs: str | Path) -> Result:
    """Set the verdict ``device`` of a run from the outputs of a device, and rewrite its ``result.json``."""
    from dovetail.device.verify_device import verify_device

    return verify_device(Path(run), Path(device_outputs))


def _path(model: ModelLike, folder: Path, name: str = "model.onnx") -> Path:
    """Return the path of a model; one in memory is written to a file, and the caller's object is not changed."""
    if isinstance(model, onnx.ModelProto):
        path = folder / name
        try:
            onnx.save(model, path)
        except ValueError as error:
            raise InputError("a model above 2 GB cannot be passed in memory: save it and pass its path") from error
        return path
    return Path(model)
