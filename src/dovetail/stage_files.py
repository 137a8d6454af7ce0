"""What stages leave on disk: models with their pass records, statistics, and the build that ships."""

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
    """What ships: the plan, what was compiled from it, how both were decided, and where its numbers go wrong, if so."""

    plan: Plan
    compiled: CompileResult
    decisions: tuple[Decision, ...]
    located: str = ""


def passed_files(path: Path) -> Codec[Passed]:
    """A model, and beside it what the passes did."""
    beside = path.with_suffix(".passes.json")

    def save(record: Passed) -> tuple[Path, ...]:
        write_whole(beside, encode(record[1]))
        return (*write(record[0], path), beside)

    def load() -> Passed:
        return ir.load(path), decode(beside.read_bytes(), tuple[PassRecord, ...])

    return Codec(save, load)


def stats_files(path: Path) -> Codec[Stats]:
    """What calibration saw."""
    return Codec(lambda stats: save_stats(stats, path), lambda: load_stats(path))


def shipment_files(run: RunDir, model: ir.Model) -> Codec[Shipment]:
    """The plan where its user finds it, the compiler's log and files, and the decisions beside the stages."""
    decisions = run.stages / "decisions.json"

    def save(record: Shipment) -> tuple[Path, ...]:
        write_whole(decisions, encode((record.decisions, record.located)))
        plan = write_plan(record.plan, model, run.path / PLAN)
        return (*plan, *save_compiled(record.compiled, run.path), decisions)

    def load() -> Shipment:
        made, located = decode(decisions.read_bytes(), tuple[tuple[Decision, ...], str])
        return Shipment(read_plan(run.path / PLAN), load_compiled(run.path), made, located)

    return Codec(save, load)


def save_compiled(compiled: CompileResult, run: Path) -> tuple[Path, ...]:
    """Write down what the compiler made in a run directory, and its log apart, for people."""
    log, record = run / COMPILED / "compile.log", run / COMPILED / "compiled.json"
    log.parent.mkdir(exist_ok=True)
    write_whole(log, compiled.log.encode())
    write_whole(record, encode(compiled, base=run))
    return (*(artifact.path for artifact in compiled.artifacts), log, record)


def load_compiled(run: Path) -> CompileResult:
    """Read what ``save_compiled`` wrote."""
    return decode((run / COMPILED / "compiled.json").read_bytes(), CompileResult, base=run)
