"""The command ``dovetail bisect``: from the caller's file to the smallest failing part, its files and its report."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dovetail.backend import MODEL, CompileResult, DeviceCase, Sample
from dovetail.bisect.attempts import Attempt, attempts
from dovetail.bisect.judge_given import compile_given
from dovetail.bisect.parts import divided
from dovetail.bisect.report import REPRODUCE, ReportCase, report_text, write_text
from dovetail.bisect.search import PREDICATES, FailingPart, Judges, failing_part
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import DataLike, open_data
from dovetail.clock import Reporter, silent
from dovetail.config import FitOptions
from dovetail.errors import BackendError, InputError
from dovetail.files import file_sha256
from dovetail.job import image_options
from dovetail.model.external_data import external_files
from dovetail.model.read import read
from dovetail.model.session import Mode, open_session, run_session
from dovetail.stage_files import load_compiled
from dovetail.sweep.fit_graph import FitRequest, fit_into
from dovetail.sweep.outcome import FailureKind
from dovetail.sweep.shrink import save_graph
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.targets.tool_call import tool_session
from dovetail.versions import core_versions

REPORT = "report.md"
# Samples on which parts are calibrated; the first one is run.
SAMPLES = 2
_NOISE = "random"
# What a session of the vendor's runtime shows: an error, or outputs. What was compiled is only in the compiler's files.
_RUNNABLE = (FailureKind.REFUSED, FailureKind.UNFINISHED, FailureKind.WRONG)


@dataclass(frozen=True, slots=True, eq=False)
class Bisection:
    """What was found, and what was tried on it."""

    part: FailingPart
    attempts: tuple[Attempt, ...]
    folder: Path


def bisect(
    path: Path,
    options: FitOptions,
    output: Path,
    *,
    predicate: str | None = None,
    calibration: DataLike | None = None,
    force: bool = False,
    report: Reporter = silent,
    command: str = "dovetail.bisect",
) -> Bisection | None:
    """The smallest part of a model that fails on a target, in ``output``; None if the whole model does not fail.

    A float model is quantized as ``fit`` does at first; one that is quantized is compiled as it is. Compilations are
    kept in the cache: a search that was interrupted makes none of them again.
    """
    kinds = _kinds(predicate)
    target = open_target(options.target, options.option)
    probe = target.backend.probe()
    if not probe.available:
        raise BackendError(f"the compiler of {target.name} is not installed: {probe.missing}")
    require_free(output, force=force)
    report("read", 0, None)
    samples, source = _samples(path, options, calibration)
    whole = divided(path, options.shape, samples)
    precision = "" if whole.quantized else options.precision
    how = FitRequest(path, path, options.target, precision, options.option, build_only=True, cache=options.cache)
    with Judges(whole.quantized) as judges:
        part = failing_part(whole, how, judges, kinds, report)
    if part is None:
        return None
    output.mkdir(parents=True, exist_ok=True)
    model, data = save_graph(part.model, part.samples, output / "part")
    how = replace(how, model=model, samples=data)
    compiled = _compiled(how, target, output, quantized=whole.quantized)
    script = part.failure.kind in _RUNNABLE and _write_script(target, compiled, part.samples, output)
    tried = []
    for attempt in attempts(model, how, target.table, quantized=whole.quantized):
        tried.append(attempt)
        report("attempt", len(tried), None)
    case = ReportCase(
        model=path.name,
        sha256=file_sha256(path, *external_files(path)),
        target=target.name,
        precision=precision,
        options=options.option,
        data=source,
        versions={**core_versions(), **probe.versions},
        command=command,
        log=compiled.log,
        script=script,
    )
    write_text(output / REPORT, report_text(part, case, tried))
    return Bisection(part, tuple(tried), output)


def _kinds(predicate: str | None) -> tuple[FailureKind, ...]:
    if predicate is not None and predicate not in PREDICATES:
        raise InputError(f"unknown predicate {predicate!r}; expected one of {', '.join(PREDICATES)}")
    names = PREDICATES if predicate is None else (predicate,)
    return tuple(kind for name in names for kind in PREDICATES[name])


def require_free(output: Path, *, force: bool) -> None:
    """Refuse a folder that has files, unless they are of an earlier search and may be replaced."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not output.is_dir():
        raise InputError(f"{output} is not a folder")
    if not (output / REPORT).exists():
        raise InputError(f"{output} has files that no bisection wrote: choose another folder with -o")
    if not force:
        raise InputError(f"{output} has the result of an earlier bisection: add --force to replace it")
    shutil.rmtree(output)


def _samples(path: Path, options: FitOptions, calibration: DataLike | None) -> tuple[list[Sample], str]:
    """The first samples, and a sentence about where they are from."""
    specs = input_specs(read(path, options.shape))
    data = open_data(_NOISE if calibration is None else calibration, specs, images=image_options(options))
    names = [spec.name for spec in specs]
    samples: list[Sample] = [
        {name: sample[name] for name in names} for sample in itertools.islice(data.samples(), SAMPLES)
    ]
    if not samples:
        raise InputError(f"{data.source}: no samples")
    what = "random numbers, which no real image looks like" if data.random else data.source
    return samples, f"Its inputs were {what}."


def _compiled(how: FitRequest, target: Target, output: Path, *, quantized: bool) -> CompileResult:
    """Compile the part once more, from the cache, and keep what the compiler gets as ``model.onnx``."""
    work = output / "work"
    work.mkdir()
    with tool_session(use_cache=how.cache):
        compiled = compile_given(how.model, target, work) if quantized else _fitted(how, work / "run")
    moved = []
    for artifact in compiled.artifacts:
        if artifact.name.startswith(MODEL) and artifact.path.exists():
            moved.append(replace(artifact, path=output / artifact.path.name))
            shutil.copyfile(artifact.path, output / artifact.path.name)
    shutil.rmtree(work)
    return replace(compiled, artifacts=tuple(moved))


def _fitted(how: FitRequest, run: Path) -> CompileResult:
    try:
        fit_into(how, run)
    except (InputError, BackendError) as error:  # refused before it was compiled
        return CompileResult(error=str(error))
    return load_compiled(run)


def _write_script(target: Target, compiled: CompileResult, samples: Mapping[str, np.ndarray], output: Path) -> bool:
    """Write a script that shows the failure with the vendor's runtime alone, if that opens an ONNX file."""
    kit, model = target.backend.device, output / "model.onnx"
    if kit is None or not kit.opens_onnx or not model.exists():
        return False
    files = kit.files(compiled, DeviceCase((), (), ()))
    sample = {name: array[0] for name, array in samples.items()}
    expected = run_session(open_session(model, Mode.EXACT), sample)
    inputs = {f"input{number}": array for number, array in enumerate(sample.values())}
    outputs = {f"output{number}": array for number, array in enumerate(expected.values())}
    np.savez(output / "sample.npz", allow_pickle=False, **inputs, **outputs)
    write_text(output / "device_session.py", files.texts["device_session.py"])
    text = REPRODUCE.format(inputs=list(sample), outputs=list(expected), model=model.name)
    write_text(output / "reproduce.py", text)
    return True
