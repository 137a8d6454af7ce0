"""The result as a person reads it on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dovetail.finding import Severity, Status
from dovetail.report.result import Comparisons, Result

_COLOURS = {Status.PASS: "green", Status.FAIL: "red", Status.NOT_CHECKED: "yellow"}
_SHOWN_FINDINGS = 8


def print_result(result: Result, run: Path, console: Console | None = None) -> None:
    """Accuracy, SQNR, size, verdicts, findings, and where everything is."""
    out = console or Console()
    out.print(f"\n[bold]{escape(result.model)}[/] on [bold]{escape(result.target)}[/] in [bold]{result.precision}[/]\n")
    out.print(_figures(result))
    out.print(_verdicts(result))
    _print_findings(result, out)
    for note in result.notes:
        out.print(f"note: {escape(note)}")
    if result.calibration is not None:
        data = result.calibration
        out.print(f"calibrated on {data.samples} samples of {escape(data.source)} ({data.sha256[:12]})")
    out.print(f"run directory: {escape(str(run))} (result.json, plan.json, model.onnx)\n", soft_wrap=True)


def _figures(result: Result) -> Table:
    table = Table(title="Figures", title_justify="left")
    for column in ("", "float", "simulation", "target"):
        table.add_column(column, justify="left" if not column else "right")
    accuracy = result.metrics.accuracy
    if accuracy is not None:
        for name in next(iter(accuracy.figures.values())):
            row = [_figure(accuracy.figures.get(way, {}).get(name)) for way in ("float", "simulation", "target")]
            table.add_row(f"{name} on {accuracy.data.samples} held-out samples", *row)
    for name, value in result.metrics.sqnr_db.simulation_vs_float.items():
        table.add_row(
            f"SQNR of {escape(name)} against float",
            "",
            _figure(value, " dB"),
            _target(result.metrics.sqnr_db, name, " dB"),
        )
    for name, value in result.metrics.top1_agreement.simulation_vs_float.items():
        table.add_row(
            f"same top class as float, {escape(name)}", "", _figure(value), _target(result.metrics.top1_agreement, name)
        )
    estimates = result.metrics.latency_estimate_us
    fitted = estimates.get("fitted")
    for name, estimate in estimates.items():
        table.add_row(f"latency, vendor's estimate, {name}", "", "", f"{estimate.mid_us} us")
        # Estimates whose operators without a cost differ in number must not be compared.
        if fitted is not None and estimate is not fitted and estimate.ops_without_cost == fitted.ops_without_cost:
            table.add_row(f"fitted against {name}, estimated", "", "", f"{fitted.mid_us / estimate.mid_us:.2f}x")
    sizes = result.metrics.size_bytes
    if sizes:
        table.add_row(
            "size of the model file", f"{sizes['float'] / 1000:.0f} kB", "", f"{sizes['quantized'] / 1000:.0f} kB"
        )
    return table


def _target(column: Comparisons, name: str, unit: str = "") -> str:
    return "not checked" if column.target_vs_float is None else _figure(column.target_vs_float.get(name), unit)


def _figure(value: float | None, unit: str = "") -> str:
    if value is None:
        return "not checked"
    return f"{value:.1f}{unit}" if unit else f"{value:.4f}"


def _verdicts(result: Result) -> Table:
    table = Table(title="What was checked", title_justify="left")
    for column in ("question", "verdict", "because"):
        table.add_column(column, overflow="fold")
    for name, verdict in result.verdicts.items():
        colour = _COLOURS[verdict.status]
        table.add_row(name, f"[{colour}]{verdict.status.replace('_', ' ')}[/]", escape(verdict.reason))
    return table


def _print_findings(result: Result, out: Console) -> None:
    serious = [f for f in result.findings if f.severity is not Severity.NOTE]
    for finding in serious[:_SHOWN_FINDINGS]:
        out.print(f"{finding.code} {finding.severity}: {escape(finding.where)}: {escape(finding.message)}")
    if len(serious) > _SHOWN_FINDINGS:
        out.print(f"... and {len(serious) - _SHOWN_FINDINGS} more findings in result.json")
    notes = len(result.findings) - len(serious)
    if notes:
        out.print(f"{notes} further notes in result.json")
