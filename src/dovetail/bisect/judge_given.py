"""Compile a graph that another tool quantized, as it is, and say what is wrong with the result."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import MODEL, Artifact, CompileResult, Runner, Sample
from dovetail.errors import BackendError, InputError, UnfinishedError
from dovetail.finding import Status, Thresholds
from dovetail.model.session import Mode, open_session, run_session
from dovetail.model.write import write
from dovetail.qdq.invert import invert
from dovetail.sweep.fit_graph import FitRequest
from dovetail.sweep.judge import compare_outputs, wrong_output
from dovetail.sweep.outcome import Failure, FailureKind, Outcome
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.targets.tool_call import tool_session
from dovetail.verify import verdicts


def judge_given(request: FitRequest) -> Outcome:
    """Compile a QDQ model as it is; a rejected one is a failure, not an error."""
    with tempfile.TemporaryDirectory(prefix="dovetail-given-") as folder, tool_session(use_cache=request.cache):
        try:
            return Outcome(tuple(_failures(request, open_target(request.target, request.option), Path(folder))))
        except UnfinishedError as error:
            return Outcome((Failure(FailureKind.UNFINISHED, str(error)),))
        except (InputError, BackendError) as error:
            return Outcome((Failure(FailureKind.REFUSED, str(error)),))


def compile_given(model: Path, target: Target, folder: Path) -> CompileResult:
    """Compile a copy of a model, because some compilers write next to the file."""
    copy = folder / "given"
    copy.mkdir()
    artifact = Artifact(MODEL, write(ir.load(model), copy / "model.onnx")[0])
    return target.backend.compile((artifact,), copy)


def _failures(request: FitRequest, target: Target, folder: Path) -> list[Failure]:
    compiled = compile_given(request.model, target, folder)
    if compiled.error:
        return [Failure(FailureKind.REFUSED if compiled.finished else FailureKind.UNFINISHED, compiled.error)]
    in_float, plan = invert(ir.load(request.model))
    found = []
    fidelity = verdicts.fidelity(target.backend.read_back(compiled, plan), Thresholds())
    if fidelity.status is Status.FAIL:
        found.append(Failure(FailureKind.CHANGED, fidelity.reason))
    wrong = _wrong(request, in_float, target.backend.runner, compiled, folder)
    return [*([] if wrong is None else [wrong]), *found]


def _wrong(
    request: FitRequest, in_float: ir.Model, runner: Runner, compiled: CompileResult, folder: Path
) -> Failure | None:
    """The output that is furthest below what the same graph gives in ONNX Runtime, for the first sample."""
    if runner.run is None:
        return None
    with np.load(request.samples) as arrays:
        sample: Sample = {name: arrays[name][0] for name in arrays.files}
    exact = run_session(open_session(write(in_float, folder / "float.onnx")[0], Mode.FLOAT), sample)
    simulated = run_session(open_session(request.model, Mode.EXACT), sample)
    return wrong_output(compare_outputs(exact, simulated, next(iter(runner.run(compiled, [sample])))))
