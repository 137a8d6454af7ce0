"""Changes that may fix a failing part: other precisions, other options, and the rewrites of ``fit`` and ``repair``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.bisect.search import TIME_LIMIT_S
from dovetail.config import options_from
from dovetail.errors import BackendError, InputError
from dovetail.finding import Status
from dovetail.model.write import write
from dovetail.op_support import OpTable
from dovetail.qdq.invert import invert
from dovetail.repairs import precision_of, repair
from dovetail.sweep.fit_graph import FitRequest
from dovetail.sweep.fit_process import FitProcess
from dovetail.sweep.outcome import Failure, FailureKind, Outcome

_NARROWEST_WEIGHTS = 8  # bits: narrower weights do not fix a part
_CHECKED = {
    "compiled": FailureKind.REFUSED,
    "fidelity": FailureKind.CHANGED,
    "numerics": FailureKind.DISAGREES,
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """Something that was tried on the part, and why it does not help; empty if it does."""

    what: str
    failure: str = ""


def attempts(part: Path, how: FitRequest, table: OpTable, *, quantized: bool) -> Iterator[Attempt]:
    """Try what is known on a part; ``how`` has the files of the part."""
    with tempfile.TemporaryDirectory(prefix="dovetail-attempts-") as name:
        if quantized:
            with FitProcess(TIME_LIMIT_S, judge_repaired) as repaired:
                yield Attempt("dovetail repair, with the scales of the model", _why_not(repaired(how)))
            how = replace(how, model=_in_float(part, Path(name)), precision=precision_of(part, {}))
        with FitProcess(TIME_LIMIT_S) as fitted:
            for what, request in _requests(how, table):
                yield Attempt(what, _why_not(fitted(request)))


def _requests(how: FitRequest, table: OpTable) -> Iterator[tuple[str, FitRequest]]:
    yield f"dovetail fit in {how.precision}, with all that it tries", replace(how, build_only=False)
    if how.option:
        yield f"{how.precision}, with the target's default options", replace(how, option={})
    for precision in table.precisions.values():
        if precision.name != how.precision and precision.weight.dtype.bits >= _NARROWEST_WEIGHTS:
            yield precision.name, replace(how, precision=precision.name)


def _why_not(outcome: Outcome) -> str:
    return f"{outcome.failures[0].kind}: {outcome.failures[0].cause}" if outcome.failures else ""


def judge_repaired(request: FitRequest) -> Outcome:
    """Repair a QDQ model; whether the result compiles, as planned, and computes what its simulation does."""
    values = {"target": request.target, "option": dict(request.option), "baselines": "none", "cache": request.cache}
    with np.load(request.samples) as arrays:
        samples = {name: arrays[name] for name in arrays.files}
    with tempfile.TemporaryDirectory(prefix="dovetail-repaired-") as name:
        try:
            options = options_from({**values, "precision": precision_of(request.model, {})})
            result, _ = repair(request.model, options, Path(name) / "run", calibration=samples)
        except (InputError, BackendError) as error:
            return Outcome((Failure(FailureKind.REFUSED, str(error)),))
        except Exception as error:  # noqa: BLE001 - a defect of ours is not one of the compiler
            return Outcome((Failure(FailureKind.UNEXPECTED, f"{type(error).__name__}: {error}"),))
    for verdict, kind in _CHECKED.items():
        found = result.verdicts[verdict]
        if found.status is Status.FAIL or (verdict == "compiled" and found.status is not Status.PASS):
            return Outcome((Failure(kind, found.reason),))
    return Outcome()


def _in_float(part: Path, folder: Path) -> Path:
    return write(invert(ir.load(part))[0], folder / "float.onnx")[0]
