"""The planned-against-deployed table, whose rows the page's script shows, filters and sorts; and the worst tensors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from dovetail.printable import printable
from dovetail.report.page.histogram_chart import histogram_charts
from dovetail.report.page.markup import Content, Markup, details, section, table, tag
from dovetail.report.page.run_view import DEPLOYED, TensorRow, tensor_rows
from dovetail.report.result import Result

_HEADERS = ("tensor", "where", "planned", "deployed", "found", "scale", "SQNR dB", "reason")
# What is shown without a script.
_STATIC_ROWS = 50
_LISTED_LOSSES = 30


def worst_section(result: Result) -> Markup:
    """Histograms of the tensors that lose most, and what each costs alone if that was measured."""
    parts: list[Content] = [tag("p", _WORST)] if result.metrics.ranges else []
    parts += histogram_charts(result)
    losses = result.metrics.losses[:_LISTED_LOSSES]
    if losses:
        rows = [
            (loss.original_name, f"{loss.consumer_sqnr_db:.1f}", "" if loss.sqnr_db is None else f"{loss.sqnr_db:.1f}")
            for loss in losses
        ]
        headers = ("tensor", "dB at its consumer, quantized alone", "dB in the simulation")
        parts.append(details("Tensors that lose most", table("Tensors that lose most", headers, rows, numeric=(1, 2))))
    return section("worst", "Worst tensors", *parts)


_WORST = (
    "Values in float, counted on a logarithmic scale. The shaded band is what the chosen integers can represent, the "
    "ticks below it are its steps (of many, every second, fourth, ...); bars outside of it are clipped."
)


def tensors_section(result: Result, other: Result | None = None, other_name: str = "") -> Markup:
    """Every row of the plan beside what was read back from the compiled model; differences first.

    ``other``: a second run, whose precision and SQNR are further columns.
    """
    rows = tensor_rows(result)
    if not rows:
        return section("tensors", "Planned and deployed", tag("p", "There is no plan: the run stopped before it."))
    headers = [*_HEADERS, *((f"planned in {other_name}", f"SQNR dB in {other_name}") if other else ())]
    cells = _cells(rows, other)
    data = _embedded({"headers": headers, **_pooled(cells)})
    return section(
        "tensors",
        "Planned and deployed",
        tag("p", _summary(result, rows)),
        _filter(rows),
        tag("div", table("First rows", headers, cells[:_STATIC_ROWS], numeric=(6,)), id="tensor-table"),
        data,
    )


def _summary(result: Result, rows: Sequence[TensorRow]) -> str:
    counts = Counter(row.deployed for row in rows)
    listed = ", ".join(f"{counts[name]} {name}" for name in DEPLOYED if counts[name])
    if not result.read_back:
        fidelity = result.verdicts.get("fidelity")
        why = "" if fidelity is None else f" ({fidelity.reason})"
        return f"Not checked: nothing was read back from a compiled model{why}. {len(rows)} rows are planned."
    explained = (
        "Fused: the compiler put it inside an operator. Never stored: planned inside a fused operator. Not read back: "
        "the compiled model does not show it, or it was not quantized."
    )
    return f"{len(rows)} planned tensors and edges: {listed}. {explained}"


def _filter(rows: Sequence[TensorRow]) -> Markup:
    outcomes = [name for name in DEPLOYED if any(row.deployed == name for row in rows)]
    dtypes = sorted({row.planned for row in rows})
    return tag(
        "div",
        tag("label", "Search tensors ", tag("input", type="search", id="tensor-search", aria_keyshortcuts="/")),
        tag("label", "Deployed ", _select("tensor-outcome", "all", outcomes)),
        tag("label", "Planned ", _select("tensor-dtype", "all", dtypes)),
        tag("label", "Sort by ", _select("tensor-sort", "differences first", ["lowest SQNR first", "name"])),
        tag("p", id="tensor-count", role="status"),
        tag("span", tag("button", "Previous", type="button", id="tensor-previous"), class_="pages"),
        tag("span", tag("button", "Next", type="button", id="tensor-next"), class_="pages"),
        class_="filter needs-script",
    )


def _select(identifier: str, first: str, options: Sequence[str]) -> Markup:
    entries = [tag("option", first, value=""), *(tag("option", option, value=option) for option in options)]
    return tag("select", entries, id=identifier)


def _cells(rows: Sequence[TensorRow], other: Result | None) -> list[list[str]]:
    compared = {} if other is None else {row.key: row for row in tensor_rows(other)}
    cells = []
    for row in rows:
        beside = compared.get(row.key)
        more = [] if other is None else [beside.planned if beside else "not in it", _db(beside)]
        found = [row.deployed, row.found]
        cells.append([row.name, row.place, row.planned, *found, row.scale, _db(row), row.why, *more])
    return [[printable(cell) for cell in line] for line in cells]


def _db(row: TensorRow | None) -> str:
    return "" if row is None or row.sqnr_db is None else f"{row.sqnr_db:.1f}"


def _pooled(cells: Sequence[Sequence[str]]) -> dict[str, object]:
    """Every text once, and rows of numbers of texts: reasons and details repeat."""
    numbers: dict[str, int] = {}
    rows = [[numbers.setdefault(cell, len(numbers)) for cell in line] for line in cells]
    return {"texts": list(numbers), "rows": rows}


def _embedded(data: object) -> Markup:
    """Data for the script; no name in it can end the element or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="tensor-data">{text}</script>')
