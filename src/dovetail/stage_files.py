"""The files of the stages: models with their pass records, statistics, and the build that ships."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import CompileResult
from dovetail.calibrate.record import load_stats, save_stats
from dovetail.document import decode, encode
from dovetail.float_graph import Passed
from dovetail.model.write import write, write_whole
from dovetail.pass_record import PassRecord
from dovetail.plan.rows import read_plan, write_plan
from dovetail.rundir import RunDir
from dovetail.stages import Codec
from dovetail.stats import Stats
from dovetail.storage import Plan
from dovetail.trials.decision import Decision
from dovetail.trials.workbench import COMPILED

PLAN = "plan.json"


@dataclass(frozen=True, slots=True, eq=False)
class Shipment:
    """What ships: the plan, the compile result, the decisions after them, and where the target goes wrong, if so."""

    plan: Plan
    compiled: CompileResult
    decisions: tuple[Decision, ...]
    located: str = ""


def passed_files(path: Path) -> Codec[Passed]:
    """A model, and the records of its passes in a file next to it."""
    passes = path.with_suffix(".passes.json")

    def save(record: Passed) -> tuple[Path, ...]:
        write_whole(passes, encode(record[1]))
        return (*write(record[0], path), passes)

    def load() -> Passed:
        return ir.load(path), decode(passes.read_bytes(), tuple[PassRecord, ...])

    return Codec(save, load)


def stats_files(path: Path) -> Codec[Stats]:
    """The calibration statistics."""
    return Codec(lambda stats: save_stats(stats, path), lambda: load_stats(path))


def shipment_files(run: RunDir, model: ir.Model) -> Codec[Shipment]:
    """The plan at the top of the run directory, the compiler's log and files, and the decisions with the stages."""
    decisions = run.stages / "decisions.json"

    def save(record: Shipment) -> tuple[Path, ...]:
        write_whole(decisions, encode((record.decisions, record.located)))
        plan = write_plan(record.plan, model, run.path / PLAN)
        return (*plan, *save_compiled(record.compiled, run.path), decisions)

    def load() -> Shipment:
        records, located = decode(decisions.read_bytes(), tuple[tuple[Decision, ...], str])
        return Shipment(read_plan(run.path / PLAN), load_compiled(run.path), records, located)

    return Codec(save, load)


def save_compiled(compiled: CompileResult, run: Path) -> tuple[Path, ...]:
    """Write the compile result to a run directory, and its log to a file of its own."""
    log, record = run / COMPILED / "compile.log", run / COMPILED / "compiled.json"
    log.parent.mkdir(exist_ok=True)
    write_whole(log, compiled.log.encode())
    write_whole(record, encode(compiled, base=run))
    return (*(artifact.path for artifact in compiled.artifacts), log, record)


def load_compiled(run: Path) -> CompileResult:
    """Read what ``save_compiled`` wrote."""
    return decode((run / COMPILED / "compiled.json").read_bytes(), CompileResult, base=run)
