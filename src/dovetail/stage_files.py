"""What a stage leaves on disk besides plans and statistics: models with their pass records, and what was compiled."""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx_ir as ir

from dovetail.model.write import write
from dovetail.pass_record import PassRecord
from dovetail.rundir import write_whole
from dovetail.target import Artifact, Compiled

Passed = tuple[ir.Model, tuple[PassRecord, ...]]


def save_passed(record: Passed, path: Path) -> None:
    """Write a model, and beside it what the passes did."""
    model, passes = record
    write(model, path)
    write_whole(path.with_suffix(".passes.json"), msgspec.json.encode(passes))


def load_passed(path: Path) -> Passed:
    """Read what ``save_passed`` wrote."""
    passes = msgspec.json.decode(path.with_suffix(".passes.json").read_bytes(), type=tuple[PassRecord, ...])
    return ir.load(path), passes


def save_compiled(compiled: Compiled, folder: Path) -> None:
    """Write the compiler's log and what it made."""
    write_whole(folder / "compile.log", compiled.log.encode())
    files = [[a.name, str(a.path.relative_to(folder.parent))] for a in compiled.artifacts]
    content = {"artifacts": files, "error": compiled.error, "facts": dict(compiled.facts)}
    write_whole(folder / "compiled.json", msgspec.json.encode(content))


def load_compiled(folder: Path) -> Compiled:
    """Read what ``save_compiled`` wrote."""
    content = msgspec.json.decode((folder / "compiled.json").read_bytes())
    artifacts = tuple(Artifact(name, folder.parent / path) for name, path in content["artifacts"])
    log = (folder / "compile.log").read_text()
    return Compiled(artifacts, content["error"], log, content["facts"])
