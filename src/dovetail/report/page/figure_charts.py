"""Charts of single figures: SQNR with its spread, latency bars, and the alternatives of a search as a Pareto plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.report.figures import header_of, with_unit
from dovetail.report.page.markup import Content, Markup
from dovetail.report.page.svg import CHAR, Axis, dot, figure, fitting, line, padded, path, rect, text, x_axis, y_axis
from dovetail.report.result import Spread
from dovetail.trials.decision import Alternative, Decision

_WIDTH, _LEFT, _RIGHT = 760, 190, 700
_ROW = 30
# What an alternative costs, in order of preference, and what it gains.
_COSTS = ("latency_us", "estimate_us", "latency_ratio", "time_ratio", "float_macs_percent", "boundaries")
_GAIN = "sqnr_db"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its label, value, the bounds of the value if known, and the text at its end."""

    label: str
    value: float
    note: str
    low: float | None = None
    high: float | None = None
    class_: str = "bar"


def bars(number: str, title: str, unit: str, rows: Sequence[Bar]) -> Markup:
    """Horizontal bars from zero; whiskers from the lower to the upper bound."""
    most = max(max(row.value, row.high or 0.0) for row in rows)
    x = Axis(0.0, most or 1.0, _LEFT, _WIDTH - 16 - max(len(row.note) for row in rows) * CHAR)
    bottom = 14 + len(rows) * _ROW
    marks: list[Content] = [*x_axis(x, 10, bottom, unit)]
    for i, row in enumerate(rows):
        y = 14 + i * _ROW
        marks.append(text(_LEFT - 8, y + 18, fitting(row.label, _LEFT - 12), anchor="end"))
        marks.append(rect(_LEFT, y + 5, x(row.value) - _LEFT, _ROW - 12, row.class_, f"{row.label}: {row.note}"))
        end = x(row.value)
        if row.low is not None and row.high is not None:
            middle, end = y + _ROW / 2 - 1, x(row.high)
            marks.append(line(x(row.low), middle, end, middle, "whisker"))
            marks += [line(x(value), middle - 5, x(value), middle + 5, "whisker") for value in (row.low, row.high)]
        marks.append(text(end + 8, y + 18, row.note))
    described = "; ".join(f"{row.label}: {row.note}" for row in rows)
    return figure(number, title, described, _WIDTH, bottom + 40, marks, least=620)


def spread_chart(rows: Mapping[str, Spread]) -> Markup | None:
    """Mean, standard deviation and lowest sample of the SQNR, by a label of output and side."""
    if not rows:
        return None
    ends = [value for s in rows.values() for value in (s.min_db, s.mean_db - s.std_db, s.mean_db + s.std_db)]
    x = Axis(*padded(ends), _LEFT, _RIGHT)
    bottom = 14 + len(rows) * _ROW
    marks: list[Content] = [*x_axis(x, 10, bottom, "SQNR dB")]
    for i, (label, spread) in enumerate(rows.items()):
        y = 14 + i * _ROW + _ROW / 2
        marks.append(text(_LEFT - 8, y + 4, fitting(label, _LEFT - 12), anchor="end"))
        tip = f"{label}: {spread_text(spread)}"
        marks.append(line(x(spread.mean_db - spread.std_db), y, x(spread.mean_db + spread.std_db), y, "whisker wide"))
        marks.append(dot(x(spread.mean_db), y, 5, "mean", tip))
        marks.append(line(x(spread.min_db), y - 7, x(spread.min_db), y + 7, "limit"))
    title = "SQNR per sample: mean (dot), standard deviation (bar), lowest sample (tick)"
    described = "; ".join(f"{label}: {spread_text(spread)}" for label, spread in rows.items())
    return figure("spread", title, described, _WIDTH, bottom + 40, marks, least=620)


def spread_text(spread: Spread) -> str:
    """A spread in words."""
    of = f"{spread.samples} sample{'s' * (spread.samples != 1)}"
    return f"{spread.mean_db:.1f} ± {spread.std_db:.1f} dB, lowest {spread.min_db:.1f} dB, {of}"


def pareto_chart(decision: Decision, number: int) -> Markup | None:
    """What every alternative costs against its SQNR, with the front of those that no other one beats."""
    cost = _cost(decision.alternatives)
    if cost is None:
        return None
    rows = [row for row in decision.alternatives if cost in row.figures and _GAIN in row.figures]
    x = Axis(*padded([row.figures[cost] for row in rows], with_zero=True), 70, _RIGHT)
    top, bottom = 26, 250
    y = Axis(*padded([row.figures[_GAIN] for row in rows]), bottom, top)
    header = header_of(cost)
    marks: list[Content] = [*y_axis(y, 70, _RIGHT, "SQNR dB"), *x_axis(x, top, bottom, header)]
    front = _front(rows, cost)
    marks.append(path([(x(row.figures[cost]), y(row.figures[_GAIN])) for row in front], "front"))
    labeled = [row for row in rows if row.label == decision.taken or row in (front[0], front[-1])]
    for row in rows:
        at = x(row.figures[cost]), y(row.figures[_GAIN])
        taken = row.label == decision.taken
        tip = f"{row.label}: {with_unit(_GAIN, row.figures[_GAIN])} dB, {header} {with_unit(cost, row.figures[cost])}"
        class_ = "taken" if taken else ("failed" if row.failure else "option")
        marks.append(dot(*at, 7 if taken else 4, class_, f"{tip} {row.failure}".strip()))
        if row in labeled:
            label, at_end = (f"{row.label} (taken)" if taken else row.label), at[0] > (_RIGHT + 70) / 2
            marks.append(text(at[0] + (-11 if at_end else 11), at[1] - 8, label, anchor="end" if at_end else "start"))
    title = f"{decision.knob}: SQNR against {header}; the line joins what no other alternative beats"
    described = "; ".join(
        f"{row.label}: {row.figures[_GAIN]:.1f} dB at {with_unit(cost, row.figures[cost])}" for row in front
    )
    return figure(
        f"pareto-{number}", title, f"Taken: {decision.taken}. {described}", _WIDTH, bottom + 44, marks, least=620
    )


def _cost(alternatives: Sequence[Alternative]) -> str | None:
    """The cost that most alternatives with an SQNR have, if at least three have one."""
    rows = [row for row in alternatives if _GAIN in row.figures]
    counts = {cost: sum(cost in row.figures for row in rows) for cost in _COSTS}
    best = max(counts, key=lambda cost: counts[cost])
    return best if counts[best] >= 3 else None


def _front(rows: Sequence[Alternative], cost: str) -> list[Alternative]:
    front: list[Alternative] = []
    for row in sorted(rows, key=lambda row: (row.figures[cost], -row.figures[_GAIN])):
        if not front or row.figures[_GAIN] > front[-1].figures[_GAIN]:
            front.append(row)
    return front
