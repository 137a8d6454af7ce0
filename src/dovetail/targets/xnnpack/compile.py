"""Lowering in a child process, and what the vendor's words mean."""

from __future__ import annotations

import re
from pathlib import Path

from dovetail.target import Artifact, Compiled
from dovetail.targets.child import run_child
from dovetail.targets.xnnpack.install import PACKAGES
from dovetail.targets.xnnpack.options import XnnpackOptions

PROGRAM, CENSUS = "program", "census"
_MADE_BY = f"executorch {PACKAGES['executorch']}"
# What the runtime says when XNNPACK refuses an operator; Python only learns a number.
_REFUSED = re.compile(r"Failed to create .*? with code: \S+|Init failed for backend \S+|Missing operator: .*")


def compile_model(asked: XnnpackOptions, artifacts: tuple[Artifact, ...], folder: Path) -> Compiled:
    """Export, lower, save and load: a program that does not load is no program."""
    program, census = folder / "model.pte", folder / "census.json"
    for old in (program, census):
        old.unlink(missing_ok=True)
    arguments = {"model": str(artifacts[0].path), "program": str(program), "census": str(census)}
    result = run_child(
        "dovetail.targets.xnnpack.lower:lower_in_child",
        arguments,
        who="the ExecuTorch lowering",
        time_limit_s=asked.time_limit_s,
        memory_limit_bytes=asked.memory_limit_bytes,
    )
    if result.answer is None:
        said = list(dict.fromkeys(_REFUSED.findall(result.log)))
        error = f"{'; '.join(said)}: {result.error}" if said else result.error
        return Compiled(artifacts, error=" ".join(error.split())[:600], log=result.log, finished=result.finished)
    made = (Artifact(PROGRAM, program, _MADE_BY), Artifact(CENSUS, census))
    return Compiled((*artifacts, *made), log=result.log)
