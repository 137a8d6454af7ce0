"""Printing the result of ``dovetail sensitivity`` on a terminal: the whole model, then what costs most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from dovetail.report.sensitivity import SensitivityResult, SensitivityRow
from dovetail.report.terminal import escape
from dovetail.trials.sensitivity.subjects import Level, Part

_SHOWN = {Level.BLOCK: 12, Level.OPERATOR: 20}
_BAR = 8
_TITLES = {Level.BLOCK: "blocks that cost most", Level.OPERATOR: "operators that cost most"}


def print_sensitivity(result: SensitivityResult, console: Console | None = None) -> None:
    """Print the whole model, the blocks and the operators that cost most, and what to try next."""
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
            out.print(_chart(result, groups[: _SHOWN[level]], _TITLES[level]))
            if len(groups) > _SHOWN[level]:
                out.print(f"{len(groups) - _SHOWN[level]} more in sensitivity.csv")
            out.print()
    for finding in result.findings:
        out.print(f"{finding.code} {finding.severity}: {escape(str(finding.place))}: {escape(finding.message)}")
    for note in result.notes:
        out.print(f"note: {escape(note)}")
    source = "random noise" if result.data.random else escape(result.data.source)
    out.print(
        f"measured on {result.data.samples} samples from {source}: mean and standard deviation over samples; equal "
        "ranks: the samples do not tell them apart; noise: relative to that of the whole model"
    )


def _whole(result: SensitivityResult) -> Table:
    table = Table(show_edge=False)
    table.add_column("quantized")
    table.add_column("SQNR", justify="right")
    for name in result.float_figures:
        table.add_column(escape(name), justify="right")
    if result.float_figures:
        table.add_row("nothing (float)", "", *(f"{value:.4f}" for value in result.float_figures.values()))
    labels = {Part.BOTH: "the whole model", Part.WEIGHTS: "weights only", Part.ACTIVATIONS: "activations only"}
    for row in result.at(Level.MODEL):
        figures = [f"{row.figures[name]:.4f}" for name in result.float_figures]
        table.add_row(labels[row.part], f"{_db(row)} ± {row.deviation_db:.1f} dB", *figures)
    return table


def _grouped(rows: Sequence[SensitivityRow]) -> list[dict[Part, SensitivityRow]]:
    """The rows of each block or operator by part, those that cost most first."""
    groups: dict[tuple[str, str], dict[Part, SensitivityRow]] = {}
    for row in rows:
        groups.setdefault((row.name, row.op_type), {})[row.part] = row
    return sorted(groups.values(), key=lambda parts: (_main(parts).rank, _main(parts).sqnr_db))


def _main(parts: Mapping[Part, SensitivityRow]) -> SensitivityRow:
    """The row of both parts, or of the only one."""
    return parts.get(Part.BOTH) or next(iter(parts.values()))


def _chart(result: SensitivityResult, groups: Sequence[Mapping[Part, SensitivityRow]], title: str) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False)
    for header in ("rank", "SQNR dB", "weights", "activ.", *map(escape, result.float_figures)):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("noise", no_wrap=True)
    table.add_column("name", overflow="fold")
    largest = max((_main(parts).share for parts in groups), default=0.0) or 1.0
    for parts in groups:
        row = _main(parts)
        figures = [f"{row.figures[name]:.4f}" for name in result.float_figures]
        alone = [_db(parts[part]) if part in parts else "" for part in (Part.WEIGHTS, Part.ACTIVATIONS)]
        bar = "█" * max(1, round(_BAR * min(row.share / largest, 1.0)))
        name = row.name if row.op_type in row.name else f"{row.name} ({row.op_type})"
        spread = f"{_db(row)} ± {row.deviation_db:.1f}"
        table.add_row(str(row.rank), spread, *alone, *figures, f"{100 * row.share:3.0f} % {bar}", escape(name))
    return table


def _db(row: SensitivityRow) -> str:
    return f"{'~' if row.estimated else ''}{row.sqnr_db:.1f}"
