"""The comparison of two runs: verdicts, figures, cost, plan and findings, with what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dovetail.finding import Finding
from dovetail.printable import size_text
from dovetail.report.page.detail_sections import flat_options
from dovetail.report.page.markup import Content, Markup, details, section, table, tag
from dovetail.report.page.metric_section import spread_of
from dovetail.report.page.run_view import tensor_rows
from dovetail.report.page.verdict_section import status_badge
from dovetail.report.result import Metrics, Result

_LISTED = 200


def comparison_section(first: Result, second: Result, names: tuple[str, str]) -> Markup:
    """Both runs side by side; the rest of the page is about the first one."""
    a, b = names
    parts: list[Content] = []
    if first.model_sha256 != second.model_sha256:
        parts.append(tag("p", "The runs are of different models: figures of outputs and tensors are not comparable."))
    parts += [
        _settings(first, second, a, b),
        _verdicts(first, second, a, b),
        _figures(first.metrics, second.metrics, a, b),
        _cost(first.metrics, second.metrics, a, b),
        _plan(first, second, a, b),
        _findings(first, second, a, b),
    ]
    return section("comparison", f"{a} compared with {b}", *parts)


def _settings(first: Result, second: Result, a: str, b: str) -> Markup:
    rows = [("model", first.model, second.model), ("target", first.target, second.target)]
    rows.append(("precision", first.precision, second.precision))
    options = [flat_options(run.options) for run in (first, second)]
    shown = {name for name, _, _ in rows}
    for name in dict.fromkeys((*options[0], *options[1])):
        before, after = (values.get(name, "not recorded") for values in options)
        if before != after and name not in shown:
            rows.append((name, before, after))
    versions = dict.fromkeys((*first.versions, *second.versions))
    for name in versions:
        before, after = (run.versions.get(name, "not used") for run in (first, second))
        if before != after:
            rows.append((f"version of {name}", before, after))
    return table("What was run; of options and versions, those that differ", ("", a, b), rows)


def _verdicts(first: Result, second: Result, a: str, b: str) -> Markup:
    rows = []
    for name in dict.fromkeys((*first.verdicts, *second.verdicts)):
        pair = [run.verdicts.get(name) for run in (first, second)]
        cells = [[status_badge(v), "" if v is None else f" {v.reason}"] for v in pair]
        rows.append((name, *cells))
    return table("Verdicts", ("verdict", a, b), rows)


def _figures(first: Metrics, second: Metrics, a: str, b: str) -> Markup:
    rows: list[tuple[str, str, str, str]] = []
    accuracies = [m.accuracy.figures if m.accuracy else {} for m in (first, second)]
    rows += _side_rows(accuracies[0], accuracies[1], "{}", ".4f")
    outputs = [_sides_of(m) for m in (first, second)]
    rows += _side_rows(outputs[0], outputs[1], "SQNR of {}, dB", ".1f")
    names = dict.fromkeys(name for sides in outputs for figures in sides.values() for name in figures)
    rows += [(f"SQNR of {name} per sample", spread_of(first, name), spread_of(second, name), "") for name in names]
    caption = "Accuracy and SQNR: of the target if both ran on it, else of both simulations"
    return table(caption, ("", a, b, f"{b} - {a}"), rows, numeric=(1, 2, 3))


_Sides = Mapping[str, Mapping[str, float | None]]
_TARGET, _SIMULATION = "target", "simulation"


def _sides_of(metrics: Metrics) -> _Sides:
    return {_TARGET: metrics.sqnr_db.target_vs_float or {}, _SIMULATION: metrics.sqnr_db.simulation_vs_float}


def _side_rows(first: _Sides, second: _Sides, label: str, form: str) -> Iterator[tuple[str, str, str, str]]:
    """The figures of one side of both runs; without a common one, each has its own side and there is no difference."""
    sides = [[side for side in (_TARGET, _SIMULATION) if figures.get(side)] for figures in (first, second)]
    common = next((side for side in sides[0] if side in sides[1]), None)
    one, two = (next(iter(own), "") if common is None else common for own in sides)
    before, after = first.get(one, {}), second.get(two, {})
    for name in dict.fromkeys((*before, *after)):
        texts = _pair(before.get(name), after.get(name), form)
        if common is not None:
            yield f"{label.format(name)} ({common})", *texts
        else:
            shown = [f"{text} ({side})" if side else text for text, side in zip(texts[:2], (one, two), strict=True)]
            yield label.format(name), shown[0], shown[1], ""


def _pair(before: float | None, after: float | None, form: str) -> tuple[str, str, str]:
    texts = ["not checked" if value is None else format(value, form) for value in (before, after)]
    change = "" if before is None or after is None else format(after - before, f"+{form}")
    return texts[0], texts[1], change


def _cost(first: Metrics, second: Metrics, a: str, b: str) -> Markup:
    rows = []
    before, after = first.size_bytes, second.size_bytes
    for name in dict.fromkeys((*before, *after)):
        sizes = [size_text(sizes[name]) if name in sizes else "none" for sizes in (before, after)]
        shown = "the float model" if name == "float" else name
        rows.append((f"size of {shown}", *sizes, _ratio(before.get(name), after.get(name))))
    estimates = [{n: e.mid_us for n, e in m.latency_estimate_us.items()} for m in (first, second)]
    measured = [dict(m.latency_measured.median_us) if m.latency_measured else {} for m in (first, second)]
    for label, (one, two) in (("estimate of", estimates), ("measured latency of", measured)):
        for name in dict.fromkeys((*one, *two)):
            texts = [f"{values[name]:.0f} us" if name in values else "not checked" for values in (one, two)]
            rows.append((f"{label} {name}", *texts, _ratio(one.get(name), two.get(name))))
    return table("Size and latency", ("", a, b, f"{b} / {a}"), rows, numeric=(1, 2, 3))


def _ratio(before: float | None, after: float | None) -> str:
    return f"{after / before:.2f}x" if before and after is not None else ""


def _plan(first: Result, second: Result, a: str, b: str) -> Markup:
    one, two = ({row.key: row for row in tensor_rows(run)} for run in (first, second))
    rows = []
    for key, row in {**one, **{k: r for k, r in two.items() if k not in one}}.items():
        before, after = (run[key].planned if key in run else "not in it" for run in (one, two))
        if before != after:
            rows.append((row.name, row.place, before, after))
    if not rows:
        return tag("p", "Both plans have the same dtype everywhere.")
    listed = "" if len(rows) <= _LISTED else f"; the first {_LISTED}"
    caption = f"Plans: {len(rows)} rows have another dtype{listed}"
    return details(caption, table(caption, ("tensor", "where", a, b), rows[:_LISTED]))


def _findings(first: Result, second: Result, a: str, b: str) -> Markup:
    def keys(findings: tuple[Finding, ...]) -> dict[tuple[str, str], Finding]:
        return {(finding.code, str(finding.place)): finding for finding in findings}

    one, two = keys(first.findings), keys(second.findings)
    rows = [(f"{code} {place}", a, one[code, place].message) for code, place in one if (code, place) not in two]
    rows += [(f"{code} {place}", b, two[code, place].message) for code, place in two if (code, place) not in one]
    if not rows:
        return tag("p", f"Both runs have the same {len(one)} findings." if one else "Neither run has findings.")
    return table("Findings of one run only", ("finding", "only in", "message"), rows[:_LISTED])
