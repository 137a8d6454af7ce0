"""Set the verdict ``fidelity`` of a run from files that the vendor's own converter wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dovetail.backend import MODEL, ReadBack
from dovetail.errors import InputError
from dovetail.model.write import write_whole
from dovetail.plan.rows import read_plan
from dovetail.report.result import Result, load_result
from dovetail.run_lock import run_lock
from dovetail.rundir import RESULT
from dovetail.stage_files import PLAN, load_compiled
from dovetail.targets import open_target
from dovetail.verify import verdicts

_SAID = "the converter's output"


def verify_converted(run: Path, outputs: Sequence[Path]) -> Result:
    """Compare files of the vendor's converter with the plan of a run, and rewrite its result."""
    load_result(run / RESULT)  # before the lock, which requires a folder
    for path in outputs:
        if not path.is_file():
            raise InputError(f"{path}: there is no such file")
    with run_lock(run.resolve()):
        result = _verified(load_result(run / RESULT), run, outputs)
        write_whole(run / RESULT, result.to_json())
    return result


def _verified(result: Result, run: Path, outputs: Sequence[Path]) -> Result:
    target = open_target(result.target, result.option)
    if target.backend.converted is None:
        raise InputError(f"--converter-output: {target.name} has no converter of its own whose output is read")
    plan = read_plan(run / PLAN, target.table.float_encoding.dtype)
    emitted = next(artifact.path for artifact in load_compiled(run).artifacts if artifact.name == MODEL)
    report = target.backend.converted(emitted, outputs, plan)
    said = tuple(f"{_SAID}: {note}" for note in report.notes)
    notes = (*(note for note in result.notes if not note.startswith(_SAID)), *said)
    result = replace(result, notes=notes)
    return result if report.read_back is None else _with_graph(result, report.read_back)


def _with_graph(result: Result, read_back: ReadBack) -> Result:
    fidelity = verdicts.fidelity(read_back, result.thresholds)
    rows = read_back.tensors if not read_back.unparsed else result.read_back
    return replace(result, verdicts={**result.verdicts, "fidelity": fidelity}, read_back=rows)
