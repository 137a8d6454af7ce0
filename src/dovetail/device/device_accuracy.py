"""Whether the outputs of a device are close enough to float, by the limits of the verdict ``accuracy``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dovetail.finding import WHOLE_MODEL, Finding, Severity, Status, Thresholds, Verdict
from dovetail.rules.accuracy import LOW_ACCURACY
from dovetail.verify.accuracy import below_limit, output_db, warnings
from dovetail.verify.compare import Agreement

# The prefix of notes and findings about what ran on the device.
ON_DEVICE = "on the device:"
_FIX = "compare with the SQNR of the simulation: if that is as low, fit the model again in a wider precision"


def with_accuracy(verdict: Verdict, vs_float: Agreement, thresholds: Thresholds) -> Verdict:
    """Add to the verdict ``device`` the condition on the SQNR against float: agreeing with a bad simulation is bad."""
    failures = below_limit(output_db(vs_float), thresholds)
    if not failures or verdict.status is not Status.PASS:
        return verdict
    return replace(verdict, status=Status.FAIL, reason="; ".join([*failures, verdict.reason]))


def with_device_findings(
    findings: Iterable[Finding], vs_float: Agreement | None, thresholds: Thresholds
) -> tuple[Finding, ...]:
    """Replace the finding of an earlier device about a low accuracy by that of this one; None: nothing is known."""
    others = tuple(f for f in findings if f.code != LOW_ACCURACY or not f.message.startswith(ON_DEVICE))
    if vs_float is None:
        return others
    sqnr_db = output_db(vs_float)
    failures = below_limit(sqnr_db, thresholds)
    problems = [*failures, *warnings(sqnr_db, vs_float.top1, thresholds)]
    if not problems:
        return others
    severity = Severity.ERROR if failures else Severity.WARNING
    numbers = {f"sqnr_db of {name}": value for name, value in sqnr_db.items()}
    return (*others, Finding(LOW_ACCURACY, WHOLE_MODEL, f"{ON_DEVICE} {'; '.join(problems)}", severity, numbers, _FIX))
