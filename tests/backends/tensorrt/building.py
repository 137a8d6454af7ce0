"""What the real builder makes of a graph."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from dovetail.backend import CompileResult, ReadBack
from dovetail.op_support import Precision
from dovetail.storage import Plan
from dovetail.target import Target
from tests.planning import noise, planned


def built(model: ir.Model, target: Target, precision: Precision, folder: Path) -> tuple[CompileResult, ReadBack, Plan]:
    """Plan, emit, run the real builder, read back."""
    plan = planned(model, target, precision, data=noise(model))
    return *built_plan(model, plan, target, folder), plan


def built_plan(model: ir.Model, plan: Plan, target: Target, folder: Path) -> tuple[CompileResult, ReadBack]:
    """The same for a plan that is given."""
    compiled = target.backend.compile(target.backend.emit(model, plan, folder), folder)
    assert compiled.error == ""
    return compiled, target.backend.read_back(compiled, plan)


def attention_note(blocks: int, fused: str) -> str:
    """The note of a compile result in whose float16 engine every attention block is one kernel."""
    return f"{blocks} attention blocks: as one kernel in the planned type: {fused}; in the float16 engine: {blocks}"
