"""Variants of a model that are tried, and the changes that turn one into another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.op_support import Precision
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.request import Pins, Request
from dovetail.plan.rounded_weights import RoundedWeight
from dovetail.stats import Stats
from dovetail.storage import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """A float graph, its calibration statistics, and the request for its plan.

    ``imported``: quantization parameters that came with the model. ``plan``: the caller's own plan, used unchanged.
    ``rounded``: weights that are not rounded to nearest; None before that is decided.
    """

    model: ir.Model
    stats: Stats
    request: Request
    imported: ImportedQParams | None = None
    plan: Plan | None = None
    rounded: Mapping[Edge, RoundedWeight] | None = None


Change = Callable[[Variant], Variant]


def pinned(pins: Pins) -> Change:
    """Add these pins to the request."""
    return lambda variant: replace(variant, request=variant.request.pinned(pins))


def in_precision(precision: Precision) -> Change:
    """Request another precision."""
    return lambda variant: replace(variant, request=replace(variant.request, precision=precision))
