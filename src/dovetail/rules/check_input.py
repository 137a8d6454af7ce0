"""What rules look at: a float graph on a target, with as much of the plan and the statistics as there is."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from dovetail.op_support import OpTable
from dovetail.stats import Stats
from dovetail.storage import Plan


@dataclass(frozen=True, slots=True, eq=False)
class CheckInput:
    """What is checked.

    ``table`` is what the target accepts, ``facts`` its vendor's own record.
    ``model`` is the float graph: the one to be quantized, or the float part of a QDQ model. ``plan`` is how it is
    stored, if that is decided. ``stats`` is what calibration saw, if there was any. ``raw`` is the file as it was read,
    Q and DQ nodes included.
    """

    model: ir.Model
    table: OpTable
    facts: object = None
    plan: Plan | None = None
    stats: Stats | None = None
    raw: ir.Model | None = None
