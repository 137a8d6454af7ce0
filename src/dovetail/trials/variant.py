"""What is being tried, and the changes that make another variant of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import onnx_ir as ir

from dovetail.op_support import Precision
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.request import Pins, Request
from dovetail.stats import Stats
from dovetail.storage import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """A float graph, what calibration saw of it, and what is asked of its plan.

    ``imported``: quantization parameters that came with the model. ``plan``: the caller's own, carried out as it is.
    """

    model: ir.Model
    stats: Stats
    request: Request
    imported: ImportedQParams | None = None
    plan: Plan | None = None


Change = Callable[[Variant], Variant]


def pinned(pins: Pins) -> Change:
    """Fix units, groups or edges."""
    return lambda variant: replace(variant, request=variant.request.pinned(pins))


def in_precision(precision: Precision) -> Change:
    """Ask for another precision."""
    return lambda variant: replace(variant, request=replace(variant.request, precision=precision))
