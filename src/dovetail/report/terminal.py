"""The result as a person reads it on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dovetail.finding import Severity, Status
from dovetail.model.split import SplitPoint
from dovetail.report.result import Comparisons, Metrics, Result
from dovetail.trials.decision import Decision

_COLOURS = {Status.PASS: "green", Status.FAIL: "red", Status.NOT_CHECKED: "yellow"}
_SHOWN_FINDINGS = 8
_SHOWN_DECISIONS = 4
# What the figures of alternatives are called in a table.
_HEADERS = {
    "sqnr_db": "SQNR dB",
    "simulation_sqnr_db": "simulation dB",
    "target_sqnr_db": "target dB",
    "estimate_us": "estimate us",
    "latency_us": "latency us",
    "time_ratio": "of the best",
}


def print_result(result: Result, run: Path, console: Console | None = None) -> None:
    """Accuracy, SQNR, size, verdicts, findings, and where everything is."""
    out = console or Console()
    out.print(f"\n[bold]{escape(result.model)}[/] on [bold]{escape(result.target)}[/] in [bold]{result.precision}[/]\n")
    out.print(_figures(result))
    _print_estimates(result.metrics, out)
    _print_placement(result.metrics, out)
    _print_decisions(result.decisions, out)
    out.print(_verdicts(result))
    _print_findings(result, out)
    if result.tail is not None:
        _print_tail(result.tail, out)
    _print_compilations(result.compilations, out)
    for note in result.notes:
        out.print(f"note: {escape(note)}")
    if result.calibration is not None:
        data = result.calibration
        out.print(f"calibrated on {data.samples} samples of {escape(data.source)} ({data.sha256[:12]})")
    out.print(f"run directory: {escape(str(run))} (result.json, plan.json, model.onnx)\n", soft_wrap=True)


def _figures(result: Result) -> Table:
    table = Table(title="Figures", title_justify="left", caption=_sample_counts(result.metrics), caption_justify="left")
    from_device = result.metrics.sqnr_db.device_vs_float is not None
    for column in ("", "float", "simulation", "target", *(("device",) if from_device else ())):
        table.add_column(column, justify="left" if not column else "right")
    for accuracy, kind in ((result.metrics.accuracy, "held-out"), (result.metrics.accuracy_emulated, "emulated")):
        if accuracy is None:
            continue
        for name in next(iter(accuracy.figures.values())):
            row = [_figure(accuracy.figures.get(way, {}).get(name)) for way in ("float", "simulation", "target")]
            table.add_row(f"{name} on {accuracy.data.samples} {kind} samples", *row)
    for name, value in result.metrics.sqnr_db.simulation_vs_float.items():
        table.add_row(
            f"SQNR of {escape(name)} against float",
            "",
            _figure(value, " dB"),
            *_measured(result.metrics.sqnr_db, name, " dB"),
        )
    for name, value in result.metrics.top1_agreement.simulation_vs_float.items():
        table.add_row(
            f"same top class as float, {escape(name)}",
            "",
            _figure(value),
            *_measured(result.metrics.top1_agreement, name),
        )
    for cells in _sizes(result.metrics.size_bytes):
        table.add_row(*cells)
    return table


def _sizes(size_bytes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """The size of the float model, and below it of every file that ships."""
    given = [("size of the float model", _kilobytes(size_bytes["float"]))] if size_bytes else []
    shipped = [(name, count) for name, count in size_bytes.items() if name != "float"]
    return [*given, *((f"size of {escape(name)}, which ships", "", "", _kilobytes(count)) for name, count in shipped)]


def _print_estimates(metrics: Metrics, out: Console) -> None:
    """Latency and bytes as the vendor's compiler puts them, and why a figure or a comparison is not there."""
    names = dict.fromkeys((*metrics.latency_estimate_us, *metrics.traffic_bytes, *metrics.not_estimated))
    if not names:
        return
    table = Table(title="Estimated by the vendor's compiler, not measured", title_justify="left")
    for column in ("", "latency", "fitted against it", "read", "written", "spilled"):
        table.add_column(column, justify="left" if not column else "right")
    for name in names:
        estimate, traffic = metrics.latency_estimate_us.get(name), metrics.traffic_bytes.get(name)
        moved = ["not checked"] * 3
        if traffic is not None:
            moved = [_kilobytes(count) for count in (traffic.read_bytes, traffic.write_bytes, traffic.spill_bytes)]
        table.add_row(
            name, "not checked" if estimate is None else f"{estimate.mid_us} us", _ratio(metrics, name), *moved
        )
    out.print(table)
    for name, why in metrics.not_estimated.items():
        out.print(f"no full estimate of {name}: {escape(why)}", soft_wrap=True)


def _print_placement(metrics: Metrics, out: Console) -> None:
    """What was left to slower kernels, and the latency that was measured here."""
    if metrics.placement is not None:
        undelegated = metrics.placement.undelegated
        kinds = Counter(f"{op.operation}: {op.reason}" for op in undelegated)
        partitions = (
            "1 partition" if metrics.placement.partitions == 1 else f"{metrics.placement.partitions} partitions"
        )
        out.print(
            f"{metrics.placement.delegated} operations are delegated to the backend in {partitions}, "
            f"{len(undelegated)} are not"
        )
        for kind, count in kinds.most_common(_SHOWN_FINDINGS):
            out.print(f"  {count} x {escape(kind)}")
    if metrics.latency_measured is not None:
        one = metrics.latency_measured
        rows = ", ".join(f"{name} {us:.0f} us ({one.ratios[name]:.2f}x)" for name, us in one.median_us.items())
        how = f"CPU time of one thread, {one.rounds} rounds by turns, against {one.baseline}"
        out.print(f"measured here, {how}: {rows}", soft_wrap=True)
        for note in one.notes:
            out.print(f"  {escape(note)}", soft_wrap=True)
    if metrics.latency_device is not None:
        two = metrics.latency_device
        figures = f"{two.compute_us:.0f} us of compute, {two.latency_us:.0f} us with copying"
        out.print(f"measured on the device, median of {two.runs} runs by {escape(two.source)}: {figures}")
    if metrics.not_measured:
        out.print(f"latency was not measured: {escape(metrics.not_measured)}", soft_wrap=True)


def _print_decisions(decisions: tuple[Decision, ...], out: Console) -> None:
    """What was chosen by trying: a table where it is about the whole model, a line for each part that changed by it."""
    for knob in dict.fromkeys(decision.knob for decision in decisions):
        group = [decision for decision in decisions if decision.knob == knob]
        for decision in (one for one in group if one.is_whole):
            out.print(f"{decision.knob}: [bold]{escape(decision.taken)}[/], {escape(decision.reason)}")
            out.print(_alternatives(decision))
            out.print(f"  rule: {escape(decision.rule)} ({decision.samples} samples)")
        changed = [one for one in group if not one.is_whole and one.taken != one.alternatives[0].label]
        for decision in changed[:_SHOWN_DECISIONS]:
            out.print(f"  {escape(str(decision.place))}: {escape(decision.taken)}, {escape(decision.reason)}")
        others = len(group) - len(changed[:_SHOWN_DECISIONS]) - sum(one.is_whole for one in group)
        if others:
            out.print(f"  {others} more decisions about {knob} in result.json")


def _alternatives(decision: Decision) -> Table:
    names = dict.fromkeys(name for one in decision.alternatives for name in one.figures)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    for column in ("", *names):
        table.add_column(_HEADERS.get(column, column), justify="left" if not column else "right")
    for one in decision.alternatives:
        figures = [_decided_by(name, one.figures.get(name)) for name in names]
        label = f"{one.label}: {one.failure}" if one.failure else one.label
        table.add_row(escape(f"{'>' if one.label == decision.taken else ' '} {label}"), *figures)
    return table


def _decided_by(name: str, value: float | None) -> str:
    """A figure by the unit in its name; blank where it does not apply."""
    if value is None:
        return ""
    if name.endswith("_db"):
        return f"{value:.1f}"
    if name.endswith("_us"):
        return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
    return f"{value:.2f}x" if name.endswith("_ratio") else f"{value:.4g}"


def _ratio(metrics: Metrics, name: str) -> str:
    fitted, other = metrics.latency_estimate_us.get("fitted"), metrics.latency_estimate_us.get(name)
    if name == "fitted" or fitted is None or other is None:
        return ""
    ratio = fitted.ratio_to(other)
    if ratio is None:
        return f"not comparable: {fitted.ops_without_cost} and {other.ops_without_cost} operators without a cost"
    return f"{ratio:.2f}x"


def _kilobytes(count: int) -> str:
    return f"{count / 1000:.0f} kB"


def _sample_counts(metrics: Metrics) -> str | None:
    """On how many samples simulation and target were compared with float, where these differ."""
    data, ran = metrics.data, metrics.target_samples
    if data is None or ran is None or ran == data.samples:
        return None
    return f"outputs against float: simulation on {data.samples} samples, target on {ran} of them"


def _measured(compared: Comparisons, name: str, unit: str = "") -> list[str]:
    """Target against float, and device against float once there is one."""
    columns = [compared.target_vs_float or {}]
    columns += [] if compared.device_vs_float is None else [compared.device_vs_float]
    return [_figure(column.get(name), unit) for column in columns]


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


def _print_compilations(compilations: Mapping[str, int], out: Console) -> None:
    """How much of what was compiled came from the compile cache."""
    compiled, cached = compilations.get("compiled", 0), compilations.get("from_cache", 0)
    if cached and not compiled:
        out.print(f"nothing was compiled: all results came from the compile cache ({cached} of {cached})")
    elif cached:
        out.print(f"compile cache: {cached} of {compiled + cached} compilations were taken from it")


def _print_tail(cut: SplitPoint, out: Console) -> None:
    """What was cut off: the nodes that cannot run, how much hangs on them, and what crosses the cut."""
    first = [node for node in cut.nodes if not node.behind]
    out.print(f"{len(cut.nodes)} nodes at the end do not run on the target and are left to tail.onnx:")
    for node in first[:_SHOWN_FINDINGS]:
        out.print(f"  {escape(node.name)} ({node.op}): {escape(node.reason)}")
    if len(first) > _SHOWN_FINDINGS:
        out.print(f"  ... and {len(first) - _SHOWN_FINDINGS} more in result.json")
    if len(cut.nodes) > len(first):
        out.print(f"  {len(cut.nodes) - len(first)} more depend on what these give")
    out.print(f"  it reads {escape(', '.join(one.tensor for one in cut.crossing))}", soft_wrap=True)


def _print_findings(result: Result, out: Console) -> None:
    serious = [f for f in result.findings if f.severity is not Severity.NOTE]
    for finding in serious[:_SHOWN_FINDINGS]:
        out.print(f"{finding.code} {finding.severity}: {escape(str(finding.place))}: {escape(finding.message)}")
        if finding.fix:
            out.print(f"  what to do: {escape(finding.fix)}")
    if len(serious) > _SHOWN_FINDINGS:
        out.print(f"... and {len(serious) - _SHOWN_FINDINGS} more findings in result.json")
    notes = len(result.findings) - len(serious)
    if notes:
        out.print(f"{notes} further notes in result.json")
