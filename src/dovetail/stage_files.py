"""What a stage leaves on disk besides plans and statistics: models with their pass records, and what was compiled."""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx_ir as ir

from dovetail.backend import Artifact, Compiled, Estimate, Placement, Traffic
from dovetail.document import convert, decode, encode
from dovetail.finding import Finding
from dovetail.model.write import write, write_whole
from dovetail.pass_record import PassRecord
from dovetail.plan.rows import read_plan, write_plan
from dovetail.search.choices import Choices
from dovetail.search.operands import OperandSearch
from dovetail.storage import Plan

Passed = tuple[ir.Model, tuple[PassRecord, ...]]
Planned = tuple[Plan, OperandSearch | None, Choices | None]


def save_passed(record: Passed, path: Path) -> tuple[Path, ...]:
    """Write a model, and beside it what the passes did."""
    model, passes = record
    beside = path.with_suffix(".passes.json")
    write_whole(beside, encode(passes))
    return (*write(model, path), beside)


def load_passed(path: Path) -> Passed:
    """Read what ``save_passed`` wrote."""
    passes = msgspec.json.decode(path.with_suffix(".passes.json").read_bytes(), type=tuple[PassRecord, ...])
    return ir.load(path), passes


def save_planned(planned: Planned, model: ir.Model, path: Path, stages: Path) -> tuple[Path, ...]:
    """Write a plan where its user finds it, and beside the stages how its operands and the rest were chosen."""
    plan, search, choices = planned
    record, chosen = stages / "operands.json", stages / "choices.json"
    write_whole(record, encode(search))
    write_whole(chosen, encode(choices))
    return (*write_plan(plan, model, path), record, chosen)


def load_planned(path: Path, stages: Path) -> Planned:
    """Read what ``save_planned`` wrote."""
    search = decode((stages / "operands.json").read_bytes(), OperandSearch)
    choices = decode((stages / "choices.json").read_bytes(), Choices)
    return read_plan(path), search, choices


def save_compiled(compiled: Compiled, folder: Path) -> tuple[Path, ...]:
    """Write the compiler's log and what it made."""
    log, record = folder / "compile.log", folder / "compiled.json"
    write_whole(log, compiled.log.encode())
    files = [[a.name, str(a.path.relative_to(folder.parent)), a.made_by] for a in compiled.artifacts]
    content = {
        "artifacts": files,
        "error": compiled.error,
        "findings": compiled.findings,
        "estimate": compiled.estimate,
        "traffic": compiled.traffic,
        "not_estimated": compiled.not_estimated,
        "finished": compiled.finished,
        "notes": compiled.notes,
        "placement": compiled.placement,
    }
    write_whole(record, encode(content))
    return (*(artifact.path for artifact in compiled.artifacts), log, record)


def load_compiled(folder: Path) -> Compiled:
    """Read what ``save_compiled`` wrote."""
    content = msgspec.json.decode((folder / "compiled.json").read_bytes())
    artifacts = tuple(Artifact(name, folder.parent / path, by) for name, path, by in content["artifacts"])
    log = (folder / "compile.log").read_text()
    findings = convert(content["findings"], tuple[Finding, ...])
    estimate = msgspec.convert(content["estimate"], Estimate | None)
    traffic = msgspec.convert(content["traffic"], Traffic | None)
    return Compiled(
        artifacts,
        content["error"],
        log,
        findings,
        estimate,
        traffic,
        content["not_estimated"],
        content["finished"],
        tuple(content["notes"]),
        msgspec.convert(content["placement"], Placement | None),
    )
