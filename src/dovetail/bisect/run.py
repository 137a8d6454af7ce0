"""The command ``dovetail bisect``: from the caller's file to the smallest failing part, its files and its report."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dovetail.backend import MODEL, CompileResult, DeviceCase, Sample
from dovetail.bisect.attempts import Attempt, attempts
from dovetail.bisect.judge_given import compile_given
from dovetail.bisect.parts import DividedModel, divided
from dovetail.bisect.report import REPRODUCE, ReportCase, report_text, write_text
from dovetail.bisect.search import PREDICATES, FailingPart, Judges, failing_part
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import DataLike, open_data
from dovetail.clock import Reporter, silent
from dovetail.config import FitOptions
from dovetail.encoding import Array
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
# A folder with this file was written by a bisection, and lists its files.
MARK = "bisection.json"
# Samples on which parts are calibrated; the first one is run.
SAMPLES = 2
_NOISE = "random"
# What a session of the vendor's runtime shows: an error, or outputs. What was compiled is only in the compiler's files.
_RUNNABLE = (FailureKind.REFUSED, FailureKind.UNFINISHED, FailureKind.WRONG)
_DEFAULT_PRECISION = "w8a8"


@dataclass(frozen=True, slots=True, eq=False)
class Bisection:
    """What was found, and what was tried on it."""

    part: FailingPart
    attempts: tuple[Attempt, ...]
    folder: Path


@dataclass(frozen=True, slots=True)
class NoFailure:
    """The model does not fail; ``checked``: what that means."""

    checked: str


def bisect(
    path: Path,
    options: FitOptions,
    output: Path,
    *,
    predicate: str | None = None,
    calibration: DataLike | None = None,
    force: bool = False,
    report: Reporter = silent,
) -> Bisection | NoFailure:
    """The smallest part of a model that fails on a target, written to ``output``.

    A float model is quantized as ``fit`` does at first; one that is quantized is compiled as it is. Compilations are
    kept in the cache: a search that was interrupted makes none of them again.
    """
    kinds = _kinds(predicate)
    target = open_target(options.target, options.option)
    probe = target.backend.probe()
    if not probe.available:
        raise BackendError(f"the compiler of {target.name} is not installed: {probe.missing}")
    runner = target.backend.runner
    if predicate == "wrong" and runner.run is None:
        raise InputError(f"--predicate wrong: {target.name} cannot run a model on this machine: {runner.why_not}")
    require_free(output, path, force=force)
    report("read", 0, None)
    samples, source = _samples(path, options, calibration)
    whole = divided(path, options.shape, samples)
    precision = _precision(whole, path, options, target)
    how = FitRequest(path, path, options.target, precision, options.option, build_only=True, cache=options.cache)
    with Judges(whole.quantized) as judges:
        part = failing_part(whole, how, judges, kinds, report)
    if part is None:
        return NoFailure(_checked(predicate, target))
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as name:
        folder = Path(name)
        model, data = save_graph(part.model, part.samples, folder / "part")
        how = replace(how, model=model, samples=data)
        compiled = _compiled(part, how, target, folder, quantized=whole.quantized)
        if part.failure.kind in _RUNNABLE:
            _write_script(target, compiled, part.samples, folder)
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
            command=_command(how, predicate),
            log=compiled.log,
            files=tuple(file.name for file in folder.iterdir()),
        )
        write_text(folder / REPORT, report_text(part, case, tried))
        _replace(folder, output)
    return Bisection(part, tuple(tried), output)


def _kinds(predicate: str | None) -> tuple[FailureKind, ...]:
    if predicate is not None and predicate not in PREDICATES:
        raise InputError(f"unknown predicate {predicate!r}; expected one of {', '.join(PREDICATES)}")
    names = PREDICATES if predicate is None else (predicate,)
    return tuple(kind for name in names for kind in PREDICATES[name])


def _precision(whole: DividedModel, path: Path, options: FitOptions, target: Target) -> str:
    """The precision in which a float model is quantized; empty if it is quantized already."""
    if whole.quantized:
        if options.precision != _DEFAULT_PRECISION:
            raise InputError(f"--precision {options.precision}: {path.name} is quantized already")
        return ""
    if options.precision not in target.table.precisions:
        names = ", ".join(target.table.precisions)
        raise InputError(f"--precision {options.precision}: expected one precision of {target.name}: {names}")
    return options.precision


def _checked(predicate: str | None, target: Target) -> str:
    """What is known of a model that does not fail."""
    if predicate is not None:
        return f"it is not {predicate}"
    if target.backend.runner.run is None:
        return f"it compiles as planned; its outputs were not checked: {target.backend.runner.why_not}"
    return "it compiles as planned, and no output for the first sample is far below its simulation"


def require_free(output: Path, model: Path, *, force: bool) -> None:
    """Refuse a folder that has files, unless all are of an earlier bisection and may be replaced."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not output.is_dir():
        raise InputError(f"{output} is not a folder")
    files = {file.name for file in output.iterdir()}
    if files - set(_written(output)) - {MARK}:
        raise InputError(f"{output} has files that no bisection wrote: choose another folder with -o")
    if output.resolve() in model.resolve().parents:
        raise InputError(f"{model} is in {output}, which would be replaced: choose another folder with -o")
    if not force:
        raise InputError(f"{output} has the result of an earlier bisection: add --force to replace it")


def _written(folder: Path) -> list[str]:
    """The names of the files that a bisection wrote to a folder; none if it was none."""
    try:
        names = json.loads((folder / MARK).read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def _replace(folder: Path, output: Path) -> None:
    """Move all files of a folder to the output, in place of those of an earlier bisection."""
    names = sorted(file.name for file in folder.iterdir())
    write_text(folder / MARK, json.dumps({"files": names}, indent=1) + "\n")
    output.mkdir(exist_ok=True)
    for name in _written(output):
        (output / name).unlink(missing_ok=True)
    for name in (*names, MARK):
        (folder / name).replace(output / name)


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


def _compiled(part: FailingPart, how: FitRequest, target: Target, output: Path, *, quantized: bool) -> CompileResult:
    """Compile the part once more, from the cache, and keep what the compiler gets as ``model.onnx``."""
    if part.failure.kind is FailureKind.UNFINISHED:  # it would crash or hang again
        return CompileResult(error=part.failure.cause)
    with tempfile.TemporaryDirectory(prefix="dovetail-bisect-") as name, tool_session(use_cache=how.cache):
        work = Path(name)
        compiled = compile_given(how.model, target, work) if quantized else _fitted(how, work / "run")
        moved = []
        for artifact in compiled.artifacts:
            if artifact.name.startswith(MODEL) and artifact.path.exists():
                moved.append(replace(artifact, path=output / artifact.path.name))
                shutil.copyfile(artifact.path, output / artifact.path.name)
    return replace(compiled, artifacts=tuple(moved))


def _fitted(how: FitRequest, run: Path) -> CompileResult:
    try:
        fit_into(how, run)
    except (InputError, BackendError) as error:  # refused before it was compiled
        return CompileResult(error=str(error))
    return load_compiled(run)


def _command(how: FitRequest, predicate: str | None) -> str:
    """The command that finds the same in the part alone."""
    words = ["dovetail", "bisect", how.model.name, "--target", how.target, "--calib", how.samples.name]
    words += ["--precision", how.precision] if how.precision else []
    words += [word for key, value in how.option.items() for word in ("--option", f"{key}={value}")]
    return shlex.join([*words, *(("--predicate", predicate) if predicate else ())])


def _write_script(target: Target, compiled: CompileResult, samples: Mapping[str, Array], output: Path) -> None:
    """Write a script that shows the failure with the vendor's runtime alone, if that opens an ONNX file."""
    kit, model = target.backend.device, output / "model.onnx"
    if kit is None or not kit.opens_onnx or not model.exists():
        return
    files = kit.files(compiled, DeviceCase((), (), ()))
    sample = {name: array[0] for name, array in samples.items()}
    expected = run_session(open_session(model, Mode.EXACT), sample)
    inputs = {f"input{number}": array for number, array in enumerate(sample.values())}
    outputs = {f"output{number}": array for number, array in enumerate(expected.values())}
    np.savez(output / "sample.npz", allow_pickle=False, **inputs, **outputs)
    write_text(output / "device_session.py", files.texts["device_session.py"])
    text = REPRODUCE.format(inputs=list(sample), outputs=list(expected), model=model.name)
    write_text(output / "reproduce.py", text)
