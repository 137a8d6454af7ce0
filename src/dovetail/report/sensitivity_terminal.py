"""Printing the result of ``dovetail sensitivity`` on a terminal: the whole model, then what costs most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from dovetail.finding import Severity
from dovetail.printable import one_line, shortened
from dovetail.report.sensitivity import CSV, JSON, SQNR, SensitivityResult, SensitivityRow
from dovetail.report.terminal import escape
from dovetail.trials.sensitivity.subjects import Level, Part

_SHOWN = {Level.BLOCK: 12, Level.OPERATOR: 20}
_SHOWN_FINDINGS = 8
_BAR = 8
_TITLES = {Level.BLOCK: "blocks that cost most", Level.OPERATOR: "operators that cost most"}
# The longest name in a table, and the longest name of a value of the metric as a header.
_NAME_CHARS, _METRIC_CHARS = 60, 10
# Below these widths of the terminal the chart has no bars, and no columns for weights and activations alone.
_WIDTH_OF_BARS, _WIDTH_OF_PARTS = 80, 70


def print_sensitivity(result: SensitivityResult, console: Console | None = None) -> None:
    """Print the whole model, the blocks and the operators that cost most, findings and notes."""
    out = console or Console()
    out.print(
        f"\n[bold]{escape(result.model)}[/] on [bold]{escape(result.target)}[/] in [bold]{result.precision}[/]: "
        f"what quantizing each part alone costs\n"
    )
    out.print(_whole(result))
    out.print()
    for level in (Level.BLOCK, Level.OPERATOR):
        if rows := result.at(level):
            groups = _grouped(rows)
            out.print(_chart(result, groups[: _SHOWN[level]], _TITLES[level], out.width))
            if len(groups) > _SHOWN[level]:
                out.print(f"{len(groups) - _SHOWN[level]} more in {CSV}")
            out.print()
    _print_findings(result, out)
    for note in result.notes:
        out.print(f"note: {escape(one_line(note))}")
    _print_reading(result, out)


def _print_findings(result: SensitivityResult, out: Console) -> None:
    serious = [finding for finding in result.findings if finding.severity is not Severity.NOTE]
    for finding in serious[:_SHOWN_FINDINGS]:
        out.print(f"{finding.code} {finding.severity}: {escape(str(finding.place))}: {escape(finding.message)}")
    if len(result.findings) > len(serious[:_SHOWN_FINDINGS]):
        out.print(f"{len(result.findings) - len(serious[:_SHOWN_FINDINGS])} more findings in {JSON}")


def _print_reading(result: SensitivityResult, out: Console) -> None:
    """Print what the figures are and on which data they were measured."""
    kind = "held-out" if result.held_out else "calibration"
    source = "random noise" if result.data.random else f"{result.data.samples} {kind} samples of {result.data.source}"
    out.print(f"SQNR: mean and standard deviation over {escape(one_line(source))}; noise: relative to the whole model")
    if result.ranked_by == SQNR:
        out.print("ranked by SQNR; equal ranks: the samples do not tell them apart")
    else:
        out.print(
            f"ranked by the drop of {_text(result.ranked_by)} on {result.metric_samples} held-out samples; equal "
            "ranks: it differs by no more than one sample contributes, and the lower SQNR comes first"
        )


def _whole(result: SensitivityResult) -> Table:
    table = Table(show_edge=False)
    table.add_column("quantized")
    table.add_column("SQNR", justify="right", no_wrap=True)
    for name in result.float_figures:
        table.add_column(_text(name), justify="right", overflow="fold")
    if result.float_figures:
        table.add_row("nothing (float)", "", *map(_figure, result.float_figures.values()))
    labels = {Part.BOTH: "the whole model", Part.WEIGHTS: "weights only", Part.ACTIVATIONS: "activations only"}
    for row in result.at(Level.MODEL):
        figures = [_figure(row.figures.get(name)) for name in result.float_figures]
        table.add_row(labels[row.part], f"{_db(row)} ± {row.deviation_db:.1f} dB", *figures)
    return table


def _grouped(rows: Sequence[SensitivityRow]) -> list[dict[Part, SensitivityRow]]:
    """The rows of each block or operator by part, those that cost most first."""
    groups: dict[tuple[str, str], dict[Part, SensitivityRow]] = {}
    for row in rows:
        groups.setdefault((row.unit, "" if row.unit else row.name), {})[row.part] = row
    return sorted(groups.values(), key=lambda parts: (_main(parts).rank, _main(parts).sqnr_db))


def _main(parts: Mapping[Part, SensitivityRow]) -> SensitivityRow:
    """The row of all that is quantized of it."""
    return next(row for row in parts.values() if row.whole)


def _chart(result: SensitivityResult, groups: Sequence[Mapping[Part, SensitivityRow]], title: str, width: int) -> Table:
    """``width``: of the terminal; a narrow one gets fewer columns."""
    metric = None if result.ranked_by == SQNR else result.ranked_by
    alone = (Part.WEIGHTS, Part.ACTIVATIONS) if width >= _WIDTH_OF_PARTS and metric is None else ()
    bars = _BAR if width >= _WIDTH_OF_BARS else 0
    table = Table(title=title, title_justify="left", show_edge=False)
    headers = {Part.WEIGHTS: "weights", Part.ACTIVATIONS: "activ."}
    for header in ("rank", "SQNR dB", *(headers[part] for part in alone)):
        table.add_column(header, justify="right", no_wrap=True)
    if metric is not None:
        table.add_column(_text(shortened(metric, _METRIC_CHARS)), justify="right", no_wrap=True)
    table.add_column("noise", no_wrap=True)
    table.add_column("name", overflow="fold")
    largest = max((_main(parts).noise for parts in groups), default=0.0) or 1.0
    for parts in groups:
        row = _main(parts)
        cells = [str(row.rank), f"{_db(row)} ± {row.deviation_db:.1f}"]
        cells += [_db(parts[part]) if part in parts else "" for part in alone]
        cells += [] if metric is None else [_figure(row.figures.get(metric))]
        bar = " " + "█" * max(1, round(bars * min(row.noise / largest, 1.0))) if bars else ""
        table.add_row(*cells, f"{_percent(row.noise)}{bar}", _operator(row))
    return table


def _operator(row: SensitivityRow) -> str:
    name = row.name if row.op_type in row.name else f"{row.name} ({row.op_type})"
    return _text(shortened(name, _NAME_CHARS))


def _text(name: str) -> str:
    return escape_markup(one_line(name))


def _percent(noise: float) -> str:
    return f"{100 * noise:3.0f} %" if noise < 10 else ">999 %"


def _figure(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4f}"


def _db(row: SensitivityRow) -> str:
    return f"{'~' if row.estimated else ''}{row.sqnr_db:.1f}"
