"""The page: its sections in order, with the style sheet and the script inside it."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

import dovetail
from dovetail.report.page.comparison_section import comparison_section
from dovetail.report.page.depth_chart import depth_chart
from dovetail.report.page.detail_sections import decisions_section, findings_section, origin_section, run_section
from dovetail.report.page.markup import Content, Markup, section, tag
from dovetail.report.page.metric_section import cost_section, metrics_section
from dovetail.report.page.run_view import layers_of
from dovetail.report.page.tensor_section import tensors_section, worst_section
from dovetail.report.page.verdict_section import summary, verdicts
from dovetail.report.result import Result

_TITLES = {
    "comparison": "Comparison",
    "verdicts": "Verdicts",
    "metrics": "Accuracy",
    "depth": "Network",
    "worst": "Tensors",
    "decisions": "Decisions",
    "findings": "Findings",
    "cost": "Latency",
    "tensors": "Planned and deployed",
    "run": "Run it",
    "origin": "Details",
}
# The browser loads nothing and runs no script but that of the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'"


def render_page(result: Result, other: Result | None = None) -> str:
    """One HTML page about a run, or about a run beside another one; the same results give the same bytes."""
    script = _asset("page.js")
    policy = _POLICY.format(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    title = f"{result.model} on {result.target} in {result.precision}"
    names = _names(result, other)
    shown = title if other is None else f"{names[0]} compared with {names[1]}"
    sections: list[Content] = [] if other is None else [comparison_section(result, other, names)]
    sections += _sections(result, other, names[1])
    links = [tag("li", tag("a", text, href=f"#{key}")) for key, text in _TITLES.items() if other or key != "comparison"]
    body = [
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", _header(title, result, other, names)),
        tag("nav", tag("ul", links), aria_label="Sections"),
        tag("main", sections, id="content", tabindex=-1),
        tag("footer", tag("p", f"Made by Dovetail {dovetail.__version__} from result.json (run {result.run}).")),
        Markup(f"<script>{script}</script>"),
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("title", f"Dovetail report: {shown}"),
        Markup(f"<style>{_asset('page.css')}</style>"),
    ]
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def _names(result: Result, other: Result | None) -> tuple[str, str]:
    """The names of two runs; if both directories have the same name, A and B tell them apart."""
    second = "" if other is None else other.run
    return (f"{result.run} (A)", f"{second} (B)") if result.run == second else (result.run, second)


def _header(title: str, result: Result, other: Result | None, names: tuple[str, str]) -> list[Markup]:
    compared = (
        [] if other is None else [tag("p", f"{names[0]} is compared with {names[1]}; {names[1]}: {summary(other)}")]
    )
    button = tag("button", "Dark theme", type="button", id="theme", class_="needs-script", aria_pressed="false")
    return [
        tag("div", tag("h1", title), button, class_="title"),
        tag("p", summary(result), class_="summary"),
        *compared,
    ]


def _sections(result: Result, other: Result | None, other_name: str) -> list[Content]:
    second = None if other is None else {layer.name: layer.sqnr_db for layer in layers_of(other)}
    chart = depth_chart(layers_of(result), second, other_name, has_operators=bool(result.operators))
    return [
        verdicts(result),
        metrics_section(result),
        section("depth", "Along the network", *_depth_notes(result), *chart),
        worst_section(result),
        decisions_section(result),
        findings_section(result),
        cost_section(result),
        tensors_section(result, other, other_name),
        run_section(result),
        origin_section(result),
    ]


def _depth_notes(result: Result) -> list[Markup]:
    if not result.plan:
        return []
    if not result.operators:
        text = (
            "This result is of an older schema, without the operators: the chart has tensors in the order of the plan."
        )
        return [tag("p", text)]
    if not any(tensor.sqnr_db is not None for tensor in result.metrics.tensors):
        text = (
            "No SQNR per operator was measured: only inputs of operators are quantized, or nothing is. The chart has "
            "the precision in which each operator reads its activations."
        )
        return [tag("p", text)]
    text = (
        "SQNR of what each operator computes in the simulation, in which everything before it is quantized too, and "
        "the precision in which it reads its activations."
    )
    return [tag("p", text)]


def _asset(name: str) -> str:
    return files("dovetail.report.page").joinpath(name).read_text(encoding="utf-8")
