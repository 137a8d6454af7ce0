"""The finding about a low accuracy: which tensors lose most, and the option that keeps them in a wider precision."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from dovetail.finding import WHOLE_MODEL, Finding, Severity, Status
from dovetail.model.origin import each_value, origin_of
from dovetail.numerics.metrics import Comparison
from dovetail.op_support import AUTO, OpTable, Precision
from dovetail.rules.accuracy import LOW_ACCURACY
from dovetail.rules.keep_line import float_precision, keep_line
from dovetail.verify.accuracy import WARNING_DB, Judgement
from dovetail.verify.verdicts import bounded_db

# How many tensors are shown, and how many the option names if more than that lose nearly everything.
SHOWN = 5
_MOST = 16
# A tensor that loses much need not cost much at the outputs.
_SENSITIVITY = "`dovetail sensitivity` measures what each operator costs"


def low_accuracy(
    judgement: Judgement,
    losses: Mapping[str, Comparison],
    model: ir.Model,
    table: OpTable,
    precision: Precision,
    *,
    searches: bool = False,
) -> tuple[Finding, ...]:
    """The finding if the accuracy is below a limit, or below what deserves a warning.

    ``searches``: whether another run can search for a mixed precision.
    """
    if not judgement.problems:
        return ()
    severity = Severity.ERROR if judgement.verdict.status is Status.FAIL else Severity.WARNING
    wider = wider_precision(table, precision)
    names = worst_tensors(losses, model)
    if wider is not None and names:
        fix = f"keep the tensors that lose most SQNR in {wider}: {keep_line(names, wider)}"
    else:
        fix = "try another range method (--range mse), more calibration data, or a wider precision"
    advice = f"--precision {AUTO} searches for what needs a wider one, {_SENSITIVITY}" if searches else _SENSITIVITY
    message = f"{'; '.join(judgement.problems)}; {advice}"
    return (Finding(LOW_ACCURACY, WHOLE_MODEL, message, severity, dict(judgement.verdict.numbers), fix),)


def worst_tensors(losses: Mapping[str, Comparison], model: ir.Model) -> list[str]:
    """The caller's names of the tensors that lose most: five, or all that are below the limit of a warning."""
    origins = {value.name or "": origin_of(value).name for value in each_value(model.graph)}
    ranked = by_original_name(losses, origins)
    low = sum(loss_db < WARNING_DB for _, loss_db in ranked)
    return [name for name, _ in ranked[: max(SHOWN, min(low, _MOST))]]


def by_original_name(losses: Mapping[str, Comparison], origins: Mapping[str, str]) -> list[tuple[str, float]]:
    """The loss of every tensor by the caller's name, the worst first."""
    by_name: dict[str, float] = {}
    for tensor, comparison in losses.items():
        name = origins[tensor]
        by_name[name] = min(by_name.get(name, math.inf), bounded_db(comparison.sqnr_db))
    return sorted(by_name.items(), key=lambda item: (item[1], item[0]))


def wider_precision(table: OpTable, precision: Precision) -> str | None:
    """The precision of the target to keep tensors in that lose too much in this one."""
    return next(iter(wider_precisions(table, precision)), None)


def wider_precisions(table: OpTable, precision: Precision) -> list[str]:
    """The precisions of the target with wider activations: first float, then the one with the most bits."""
    if not precision.activation.dtype.is_quantized:
        return []
    in_float = float_precision(table)
    integers = {
        name: (other.activation.dtype.bits, -other.weight.dtype.bits)  # activations are kept, so weights need not grow
        for name, other in table.precisions.items()
        if other.activation.dtype.is_quantized
        and other.activation.dtype.bits > precision.activation.dtype.bits
        and other.weight.dtype.bits >= precision.weight.dtype.bits
    }
    return [*([in_float] if in_float else []), *sorted(integers, key=integers.__getitem__)[-1:]]
