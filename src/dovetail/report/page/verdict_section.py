"""The top of the page: the verdicts in plain words, and what was not checked."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.finding import Severity, Status, Verdict
from dovetail.report.page.markup import Content, Markup, details, inline, section, table, tag
from dovetail.report.result import Result

# What each verdict answers.
_QUESTIONS: Mapping[str, str] = {
    "normalized": "Does the normalized float graph compute what the original model does?",
    "compiled": "Did the target's compiler accept the whole graph?",
    "fidelity": "Does the compiled model have the planned precision everywhere?",
    "numerics": "Are the target's outputs as close to float as the simulation's?",
    "accuracy": "Are the outputs close enough to float?",
    "budget": "Is the compiled model within the limits on latency and float?",
    "device": "Does a real device compute the same?",
    "repaired": "Is the repaired model as good as the one that was given?",
}
_SHOWN: Mapping[Status, str] = {Status.PASS: "pass", Status.FAIL: "fail", Status.NOT_CHECKED: "not checked"}
_SYMBOLS: Mapping[Status, str] = {Status.PASS: "✓", Status.FAIL: "✗", Status.NOT_CHECKED: "?"}


def status_badge(verdict: Verdict | None) -> Markup:
    """The status as a word and a symbol, so that it does not depend on color."""
    if verdict is None:
        return tag("span", "no verdict", class_="badge none")
    symbol = tag("span", _SYMBOLS[verdict.status], aria_hidden="true")
    return tag("span", symbol, f" {_SHOWN[verdict.status]}", class_=f"badge {verdict.status}")


def summary(result: Result) -> str:
    """The whole result in two sentences."""
    by_status = {s: [name for name, v in result.verdicts.items() if v.status is s] for s in Status}
    failed, passed, unchecked = (by_status[s] for s in (Status.FAIL, Status.PASS, Status.NOT_CHECKED))
    if failed:
        text = (
            f"{len(failed)} of {len(result.verdicts)} verdicts {_verb(failed, 'fails', 'fail')}: {', '.join(failed)}."
        )
    elif passed:
        text = f"No verdict fails; {len(passed)} of {len(result.verdicts)} {_verb(passed, 'passes', 'pass')}."
    else:
        text = "Nothing was checked."
    if unchecked:
        text += f" Not checked, which is not a pass: {', '.join(unchecked)}."
    errors = sum(finding.severity is Severity.ERROR for finding in result.findings)
    if errors:
        text += f" {errors} finding{'s' * (errors != 1)} of severity error prevent{'s' * (errors == 1)} deployment."
    return text


def _verb(names: list[str], one: str, several: str) -> str:
    return one if len(names) == 1 else several


def verdicts(result: Result) -> Markup:
    """Every verdict with its question, status, reason, and on request its conditions and evidence."""
    items = [
        tag(
            "li",
            tag("h3", tag("code", name), " ", status_badge(verdict)),
            tag("p", _QUESTIONS.get(name, ""), class_="question"),
            tag("p", inline(verdict.reason)),
            _conditions(verdict),
            class_=f"verdict {verdict.status}",
        )
        for name, verdict in result.verdicts.items()
    ]
    return section("verdicts", "Verdicts", tag("ul", items, class_="verdicts"), _not_checked(result))


def _conditions(verdict: Verdict) -> Markup:
    parts: list[Content] = []
    if verdict.passes_when:
        pairs = [(tag("dt", name), tag("dd", text)) for name, text in verdict.passes_when.items()]
        parts.append(tag("dl", *pairs))
    if verdict.evidence:
        parts.append(tag("p", tag("strong", "Evidence: "), verdict.evidence))
    if verdict.numbers:
        parts.append(
            table("Numbers", ("name", "value"), [(k, f"{v:.6g}") for k, v in verdict.numbers.items()], numeric=(1,))
        )
    return details("When it passes, and the evidence", *parts)


def _not_checked(result: Result) -> Markup:
    """What this result does not tell, and why."""
    metrics = result.metrics
    rows = [(name, v.reason) for name, v in result.verdicts.items() if v.status is Status.NOT_CHECKED]
    if metrics.target_samples is None:
        rows.append(("outputs of the target", "the target did not run on this machine; figures are of the simulation"))
    elif metrics.data is not None and metrics.target_samples < metrics.data.samples:
        samples = f"the target ran {metrics.target_samples} of {metrics.data.samples} samples"
        rows.append(("outputs of the target on all samples", samples))
    if metrics.accuracy is None:
        rows.append(("accuracy on labels", "no metric was given (--eval DATA --metric MODULE:FUNCTION)"))
    if metrics.latency_measured is None and metrics.latency_device is None:
        rows.append(("latency on a device", metrics.not_measured or "it was not measured"))
    rows += [(f"estimate of {name}", why) for name, why in metrics.not_estimated.items()]
    if metrics.data is not None and metrics.data.random:
        rows.append(("accuracy on real data", "the samples are random: figures do not tell how accurate the model is"))
    if not rows:
        return tag("p", "Everything was checked.")
    return table("Not checked", ("what", "why"), [(what, inline(why)) for what, why in rows], class_="not-checked")
