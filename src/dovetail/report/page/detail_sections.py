"""Decisions with alternatives, findings with explanation and fix, how to run the artifact, and details of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.catalog import all_rules
from dovetail.finding import Finding, Severity, Status
from dovetail.printable import size_text
from dovetail.report.figures import header_of, with_unit
from dovetail.report.page.figure_charts import pareto_chart
from dovetail.report.page.markup import Content, Markup, code_block, details, inline, prose, section, table, tag
from dovetail.report.result import Result
from dovetail.rules.rule import Rule
from dovetail.trials.decision import Decision

_LISTED_DECISIONS, _LISTED_PLACES, _LISTED_SITES = 100, 200, 50
_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


def decisions_section(result: Result) -> Markup:
    """What was chosen by trial: for the whole model with a chart, for single places in a table."""
    if not result.decisions:
        empty = "Nothing was chosen by trial: the requested precision was used as it is."
        return section("decisions", "Decisions", tag("p", empty))
    whole = [decision for decision in result.decisions if decision.is_whole]
    parts: list[Content] = [_whole(decision, number) for number, decision in enumerate(whole)]
    local = [decision for decision in result.decisions if not decision.is_whole]
    if local:
        rows = [(str(d.place), d.knob, d.taken, _alternatives_text(d), d.reason) for d in local[:_LISTED_DECISIONS]]
        headers = ("place", "knob", "taken", "alternatives", "reason")
        parts.append(table("Decisions at single places", headers, rows))
        if len(local) > len(rows):
            parts.append(tag("p", f"{len(local) - len(rows)} more decisions are in result.json."))
    return section("decisions", "Decisions", *parts)


def _whole(decision: Decision, number: int) -> Markup:
    names = list(dict.fromkeys(name for row in decision.alternatives for name in row.figures))
    rows = []
    for row in decision.alternatives:
        label = tag("strong", row.label, " (taken)") if row.label == decision.taken else row.label
        rows.append((label, *(with_unit(name, row.figures.get(name)) or "not measured" for name in names), row.failure))
    headers = ("alternative", *(header_of(name) for name in names), "not usable because")
    return tag(
        "div",
        tag("h3", f"{decision.knob}: {decision.taken}"),
        tag("p", inline(decision.reason)),
        tag("p", tag("strong", "Criterion: "), f"{decision.rule} ({decision.samples} samples)"),
        pareto_chart(decision, number),
        table(f"Alternatives for {decision.knob}", headers, rows, numeric=range(1, len(names) + 1)),
    )


def _alternatives_text(decision: Decision) -> list[Markup]:
    rows = []
    for row in decision.alternatives:
        figures = ", ".join(f"{header_of(name)} {with_unit(name, value)}" for name, value in row.figures.items())
        rows.append(tag("div", f"{row.label}: {figures or 'no figure'}{row.failure and f'; {row.failure}'}"))
    return rows


def findings_section(result: Result) -> Markup:
    """The findings by rule, the worst first, with a filter."""
    if not result.findings:
        compiled = result.verdicts.get("compiled")
        text = "No rule found a problem with this graph or this plan; nothing was compiled."
        if compiled is not None and compiled.status is not Status.NOT_CHECKED:
            text = "No rule found a problem with this graph, this plan or this compiler run."
        return section("findings", "Findings", tag("p", text))
    rules = {rule.code: rule for rule in all_rules()}
    by_code: dict[str, list[Finding]] = {}
    for finding in sorted(result.findings, key=lambda finding: (_SEVERITIES.index(finding.severity), finding.code)):
        by_code.setdefault(finding.code, []).append(finding)
    items = [_rule(findings, rules.get(code)) for code, findings in by_code.items()]
    return section("findings", "Findings", _finding_filter(), tag("div", items, id="finding-list"))


def _finding_filter() -> Markup:
    options = [tag("option", "all severities", value="")]
    options += [tag("option", str(severity), value=str(severity)) for severity in _SEVERITIES]
    return tag(
        "div",
        tag("label", "Search findings ", tag("input", type="search", id="finding-search")),
        tag("label", "Severity ", tag("select", options, id="finding-severity")),
        tag("p", id="finding-count", role="status"),
        class_="filter needs-script",
    )


def _rule(findings: list[Finding], rule: Rule | None) -> Markup:
    first = findings[0]
    title = f"{first.code} {rule.summary if rule else ''}".strip()
    rows = [_finding(finding) for finding in findings[:_LISTED_PLACES]]
    left = len(findings) - len(rows)
    explanation: Content = tag("p", "This code is not known to this version of Dovetail.")
    if rule is not None:
        texts = [(tag("h4", heading), prose(text)) for heading, text in rule.sections.items()]
        explanation = details("Explanation", *texts)
    return tag(
        "article",
        tag("h3", tag("span", str(first.severity), class_=f"badge {first.severity}"), " ", title),
        tag("p", f"{len(findings)} place{'s' * (len(findings) != 1)}"),
        tag("ul", rows, class_="places"),
        tag("p", f"{left} more are in result.json.") if left else None,
        explanation,
        class_="rule",
    )


def _finding(finding: Finding) -> Markup:
    fix = tag("p", tag("strong", "Fix: "), inline(finding.fix)) if finding.fix else None
    text = tag("p", tag("code", str(finding.place)), ": ", inline(finding.message))
    return tag("li", text, fix, class_="finding", data_severity=str(finding.severity))


def run_section(result: Result) -> Markup:
    """What ships, and code that loads it."""
    compiled = result.verdicts.get("compiled")
    is_rejected = compiled is not None and compiled.status is Status.FAIL
    shipped = [artifact for artifact in result.artifacts if artifact.shipped and not is_rejected]
    if not shipped:
        return section("run", "Run the compiled model", tag("p", "Nothing ships, because nothing was compiled."))
    parts: list[Content] = []
    for artifact in shipped:
        made_by = f", made by {artifact.made_by}" if artifact.made_by else ""
        parts.append(tag("h3", tag("code", artifact.path), f" ({size_text(artifact.bytes)}{made_by})"))
        if artifact.load:
            parts += [tag("p", "Load it with:"), code_block(artifact.load)]
    parts += [tag("p", inline(note)) for note in result.notes if note.startswith("deploy ")]
    rows = [
        (a.path, "ships" if a.shipped else "for inspection", size_text(a.bytes), a.sha256) for a in result.artifacts
    ]
    parts.append(
        details("All files with their SHA-256", table("Files", ("file", "use", "size", "SHA-256"), rows, numeric=(2,)))
    )
    return section("run", "Run the compiled model", *parts)


def origin_section(result: Result) -> Markup:
    """How the run was made: data, options, passes, versions, times."""
    parts: list[Content] = []
    if result.calibration is not None:
        data = result.calibration
        parts.append(tag("p", f"Calibrated on {data.samples} samples from {data.source} (SHA-256 {data.sha256[:12]})."))
    if result.notes:
        parts += [tag("h3", "Notes"), tag("ul", [tag("li", inline(note)) for note in result.notes])]
    if result.tail is not None:
        rows = [(node.name, node.op, node.reason) for node in result.tail.nodes[:_LISTED_PLACES]]
        parts.append(table("Nodes of tail.onnx, which the target cannot run", ("node", "operator", "reason"), rows))
    if result.passes:
        parts.append(details(f"Rewrites ({len(result.passes)} passes)", *_passes(result)))
    options = flat_options(result.options)
    if options:
        parts.append(details("Options", table("Options of the run", ("option", "value"), list(options.items()))))
    parts.append(details("Versions", table("Versions", ("component", "version"), list(result.versions.items()))))
    times = [(name, f"{seconds:.2f}") for name, seconds in result.timings_s.items()]
    parts.append(details("Times", table("CPU seconds per stage", ("stage", "seconds"), times, numeric=(1,))))
    return section("origin", "How the run was made", *parts)


def flat_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Every option as text; those of a table as ``table.option``."""
    texts: dict[str, str] = {}
    for name, value in options.items():
        if isinstance(value, dict) and value:
            texts |= {f"{name}.{key}": text for key, text in flat_options(value).items()}
        elif isinstance(value, list):
            texts[name] = ", ".join(map(str, value)) or "not set"
        else:
            texts[name] = "not set" if value is None or value == {} else str(value)
    return texts


def _passes(result: Result) -> Iterator[Markup]:
    for record in result.passes:
        yield tag("h4", f"{record.name}: applied at {len(record.changed)}, declined at {len(record.declined)} sites")
        sites = [("applied", site) for site in record.changed] + [("declined", site) for site in record.declined]
        rows = [(site.where, kind, site.what) for kind, site in sites[:_LISTED_SITES]]
        yield table(f"Sites of {record.name}", ("where", "", "what"), rows)
        if len(sites) > len(rows):
            yield tag("p", f"{len(sites) - len(rows)} more sites are in result.json.")
