"""The input of a rule: a float graph and its target, with the plan and the calibration statistics if they exist."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from dovetail.encodings.records import Encodings
from dovetail.op_support import OpTable
from dovetail.plan.constraints import Problem, build_problem
from dovetail.stats import Stats
from dovetail.storage import Plan


@dataclass(frozen=True, eq=False)
class CheckInput:
    """What a rule checks.

    ``model`` is the float graph: the one to quantize, or a QDQ model without its Q and DQ nodes. ``table`` lists what
    the target supports; ``facts`` is the target's own record (chip, options, SDK version). ``plan`` has the
    quantization of every tensor, if it is decided; ``stats`` the calibration statistics, if the model was calibrated.
    ``raw`` is the file as it was read, including its Q and DQ nodes; ``encodings`` the file beside it,
    if there is one.
    """

    model: ir.Model
    table: OpTable
    facts: object = None
    plan: Plan | None = None
    stats: Stats | None = None
    raw: ir.Model | None = None
    encodings: Encodings | None = None

    @cached_property
    def problem(self) -> Problem:
        """The units and sharing groups of the graph, which most rules need."""
        return build_problem(self.model, self.table)
