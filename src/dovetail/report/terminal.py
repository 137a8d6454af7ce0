"""Printing a result on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from dovetail.finding import Severity, Status
from dovetail.model.split import SplitPoint
from dovetail.printable import one_line, printable, shorten_words, shortened, size_text
from dovetail.report.figures import HEADERS, with_unit
from dovetail.report.result import Comparisons, Metrics, Result
from dovetail.trials.decision import Alternative, Decision

_COLOURS = {Status.PASS: "green", Status.FAIL: "red", Status.NOT_CHECKED: "yellow"}
_SHOWN_FINDINGS = 8
_SHOWN_DECISIONS = 4
_SHOWN_ALTERNATIVES = 14
_SHOWN_LOSSES = 5
# The longest name of a tensor in a table, and the longest word in a message.
_NAME_CHARS, _WORD_CHARS = 60, 120
# What may be at the top of a run directory, for the reader.
_FILES = ("result.json", "plan.json", "repair.json", "report.html", "device/")


def print_result(result: Result, run: Path, console: Console | None = None) -> None:
    """Print accuracy, SQNR, sizes, estimates, decisions, verdicts, findings, notes and the run directory."""
    out = console or Console()
    out.print(f"\n[bold]{escape(result.model)}[/] on [bold]{escape(result.target)}[/] in [bold]{result.precision}[/]\n")
    out.print(_figures(result))
    _print_estimates(result.metrics, out)
    _print_placement(result.metrics, out)
    _print_decisions(result.decisions, out)
    out.print(_verdicts(result))
    _print_losses(result.metrics, out)
    _print_findings(result, out)
    if result.tail is not None:
        _print_tail(result.tail, out)
    _print_reused(result, out)
    for note in result.notes:
        out.print(f"note: {escape(note)}")
    if result.calibration is not None:
        data = result.calibration
        out.print(f"calibrated on {data.samples} samples from {escape(data.source)} (SHA-256 {data.sha256[:12]})")
    _print_files(result, run, out)


def _print_files(result: Result, run: Path, out: Console) -> None:
    """Print what ships and how to load it, and the run directory with the files that it has."""
    compiled = result.verdicts.get("compiled")
    is_rejected = compiled is not None and compiled.status is Status.FAIL
    shipped = [artifact for artifact in result.artifacts if artifact.shipped and not is_rejected]
    for artifact in shipped:
        out.print(f"ships: [bold]{escape(artifact.path)}[/] ({size_text(artifact.bytes)})", highlight=False)
        if artifact.load:
            out.print(f"  load it with {escape(artifact.load)}", highlight=False)
    if not shipped:
        out.print("ships: nothing, because nothing was compiled")
    files = [name for name in _FILES if (run / name).exists()]
    out.print(f"run directory: {escape_markup(one_line(str(run)))}", soft_wrap=True, highlight=False)
    out.print(f"  {', '.join(files)}\n", highlight=False)


def escape(text: str) -> str:
    """Escape control characters and markup in a message, and shorten names in it that fill lines."""
    return escape_markup(shorten_words(printable(text), _WORD_CHARS))


def _name(name: str) -> str:
    """A name for a table: on one line, escaped and shortened."""
    return escape_markup(shortened(one_line(name), _NAME_CHARS))


def _figures(result: Result) -> Table:
    table = Table(title="Metrics", title_justify="left", caption=_sample_counts(result.metrics), caption_justify="left")
    from_device = result.metrics.sqnr_db.device_vs_float is not None
    for column in ("", "float", "simulation", "target", *(("device",) if from_device else ())):
        table.add_column(column, justify="left" if not column else "right", no_wrap=bool(column), overflow="fold")
    for accuracy, kind in ((result.metrics.accuracy, "held-out"), (result.metrics.accuracy_emulated, "emulated")):
        if accuracy is None:
            continue
        for name in next(iter(accuracy.figures.values())):
            row = [_figure(accuracy.figures.get(column, {}).get(name)) for column in ("float", "simulation", "target")]
            table.add_row(f"{_name(name)} on {accuracy.data.samples} {kind} samples", *row)
    for cells in _output_rows(result.metrics):
        table.add_row(*cells)
    for cells in _sizes(result.metrics.size_bytes):
        table.add_row(*cells)
    return table


def _output_rows(metrics: Metrics) -> Iterator[tuple[str, ...]]:
    """Rows with figures per output; all figures of a row are on the same samples."""
    rows: list[tuple[str, Comparisons, str, str]] = []
    integers = metrics.equal_integers.simulation_vs_float  # dB say nothing about classes, indices and flags
    for name in metrics.sqnr_db.simulation_vs_float:
        if name in integers:
            rows.append((f"same integers as float, {_name(name)}", metrics.equal_integers, name, ""))
        else:
            rows.append((f"SQNR of {_name(name)} against float", metrics.sqnr_db, name, " dB"))
    top1 = metrics.top1_agreement
    rows += [(f"top-1 agreement with float, {_name(name)}", top1, name, "") for name in top1.simulation_vs_float]
    for label, comparisons, name, unit in rows:
        yield label, "", *_measured(comparisons, name, unit)
        if unit:
            yield from _spread_rows(metrics, name)
        if comparisons.simulation_where_device_ran is not None:
            count = "" if metrics.device_samples is None else f" {metrics.device_samples}"
            yield f"  on the{count} samples of the device", "", *_on_device(comparisons, name, unit)


def _sizes(size_bytes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Rows with the size of the float model and of every shipped file."""
    original = [("size of the float model", size_text(size_bytes["float"]))] if size_bytes else []
    shipped = [(name, count) for name, count in size_bytes.items() if name != "float"]
    return [*original, *((f"size of {_name(name)} (shipped)", "", "", size_text(count)) for name, count in shipped)]


def _print_estimates(metrics: Metrics, out: Console) -> None:
    """Print latency and traffic as estimated by the vendor's compiler, and why a value is missing."""
    names = dict.fromkeys((*metrics.latency_estimate_us, *metrics.traffic_bytes, *metrics.not_estimated))
    if not names:
        return
    table = Table(title="Estimated by the vendor's compiler, not measured", title_justify="left")
    for column in ("", "latency", "fitted / this", "read", "written", "spilled"):
        table.add_column(column, justify="left" if not column else "right")
    for name in names:
        estimate, traffic = metrics.latency_estimate_us.get(name), metrics.traffic_bytes.get(name)
        bytes_moved = ["not checked"] * 3
        if traffic is not None:
            counts = (traffic.read_bytes, traffic.write_bytes, traffic.spill_bytes)
            bytes_moved = [size_text(count) for count in counts]
        table.add_row(
            name, "not checked" if estimate is None else f"{estimate.mid_us} us", _ratio(metrics, name), *bytes_moved
        )
    out.print(table)
    for name, why in metrics.not_estimated.items():
        out.print(f"no complete estimate of {name}: {escape(why)}")


def _print_placement(metrics: Metrics, out: Console) -> None:
    """Print what was not delegated to the backend, and the measured latency."""
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
        here = metrics.latency_measured
        rows = ", ".join(f"{name} {us:.0f} us ({here.ratios[name]:.2f}x)" for name, us in here.median_us.items())
        how = f"CPU time of one thread, {here.rounds} rounds run alternately, relative to {here.baseline}"
        out.print(f"measured on this machine ({how}): {rows}")
        for note in here.notes:
            out.print(f"  {escape(note)}")
    if metrics.latency_device is not None:
        device = metrics.latency_device
        figures = f"{device.compute_us:.0f} us of compute, {device.latency_us:.0f} us with copies"
        out.print(f"measured on the device, median of {device.runs} runs by {escape(device.source)}: {figures}")
    if metrics.not_measured:
        out.print(f"latency was not measured: {escape(metrics.not_measured)}")


def _print_decisions(decisions: tuple[Decision, ...], out: Console) -> None:
    """Print what was chosen by trial: a table for the whole model, one line for each place where something changed."""
    for knob in dict.fromkeys(decision.knob for decision in decisions):
        group = [decision for decision in decisions if decision.knob == knob]
        for decision in (decision for decision in group if decision.is_whole):
            out.print(f"{decision.knob}: [bold]{escape(decision.taken)}[/]; {escape(decision.reason)}")
            out.print(_alternatives(decision))
            if (left := len(decision.alternatives) - len(_shown(decision))) > 0:
                out.print(f"  {left} more alternatives in result.json")
            out.print(f"  criterion: {escape(decision.rule)} ({decision.samples} samples)")
        changed = [d for d in group if not d.is_whole and d.taken != d.alternatives[0].label]
        for decision in changed[:_SHOWN_DECISIONS]:
            out.print(f"  {escape(str(decision.place))}: {escape(decision.taken)}; {escape(decision.reason)}")
        not_shown = len(group) - len(changed[:_SHOWN_DECISIONS]) - sum(decision.is_whole for decision in group)
        if not_shown:
            out.print(f"  {not_shown} more decisions about {knob} in result.json")


def _shown(decision: Decision) -> list[Alternative]:
    """The alternatives to print: if there are many, those with the most figures, and the one that was taken."""
    rows = list(decision.alternatives)
    if len(rows) <= _SHOWN_ALTERNATIVES:
        return rows
    by_figures = sorted(rows, key=lambda row: (row.label == decision.taken, len(row.figures)), reverse=True)
    labels = {row.label for row in by_figures[:_SHOWN_ALTERNATIVES]}
    return [row for row in rows if row.label in labels]


def _alternatives(decision: Decision) -> Table:
    names = dict.fromkeys(name for alternative in decision.alternatives for name in alternative.figures)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 2))
    for column in ("", *names):
        header, is_label = HEADERS.get(column, column), not column
        table.add_column(escape(header), justify="left" if is_label else "right", no_wrap=is_label and len(names) > 4)
    for alternative in _shown(decision):
        figures = [with_unit(name, alternative.figures.get(name)) for name in names]
        label = f"{alternative.label}: {alternative.failure}" if alternative.failure else alternative.label
        table.add_row(escape(f"{'>' if alternative.label == decision.taken else ' '} {label}"), *figures)
    return table


def _ratio(metrics: Metrics, name: str) -> str:
    fitted, other = metrics.latency_estimate_us.get("fitted"), metrics.latency_estimate_us.get(name)
    if name == "fitted" or fitted is None or other is None:
        return ""
    ratio = fitted.ratio_to(other)
    if ratio is None:
        return f"not comparable: {fitted.ops_without_cost} and {other.ops_without_cost} operators have no cost"
    return f"{ratio:.2f}x"


def _sample_counts(metrics: Metrics) -> str | None:
    """Say on how many samples simulation and target were compared with float."""
    data, on_target = metrics.data, metrics.target_samples
    if data is None:
        return None
    count = data.samples if on_target is None else on_target
    text = f"outputs against float on {count} sample{'s' * (count != 1)}"
    if on_target is None or on_target == data.samples:
        return text
    if metrics.sqnr_db.simulation_where_target_ran is None:  # a result of an earlier version
        return f"outputs against float: simulation on {data.samples} samples, target on {on_target} of them"
    return f"{text}, those that the target ran; the simulation on all {data.samples} is in result.json"


def _spread_rows(metrics: Metrics, name: str) -> list[tuple[str, ...]]:
    """SQNR per sample of simulation and target: mean with standard deviation, and lowest; none if there is one."""
    columns = (metrics.sqnr_db_per_sample.simulation_vs_float, metrics.sqnr_db_per_sample.target_vs_float or {})
    spreads = [column.get(name) for column in columns]
    if not any(spread is not None and spread.samples > 1 for spread in spreads):
        return []
    means = ["" if spread is None else f"{spread.mean_db:.1f} ± {spread.std_db:.1f} dB" for spread in spreads]
    lowest = ["" if spread is None else f"{spread.min_db:.1f} dB" for spread in spreads]
    return [("  mean and std over samples", "", *means), ("  lowest sample", "", *lowest)]


def _measured(comparisons: Comparisons, name: str, unit: str = "") -> list[str]:
    """The metrics of simulation and target against float on the same samples."""
    simulation = comparisons.simulation_where_target_ran
    columns = [comparisons.simulation_vs_float if simulation is None else simulation]
    columns += [comparisons.target_vs_float or {}]
    cells = [_figure(column.get(name), unit) for column in columns]
    if comparisons.device_vs_float is None or comparisons.simulation_where_device_ran is not None:
        return cells
    return [*cells, _figure(comparisons.device_vs_float.get(name), unit)]  # a result of an earlier version


def _on_device(comparisons: Comparisons, name: str, unit: str = "") -> list[str]:
    """The metrics of simulation and device against float on the samples that the device ran."""
    columns = (comparisons.simulation_where_device_ran or {}, comparisons.device_vs_float or {})
    simulation, device = (_figure(column.get(name), unit) for column in columns)
    return [simulation, "", device]


def _figure(value: float | None, unit: str = "") -> str:
    if value is None:
        return "not checked"
    return f"{value:.1f}{unit}" if unit else f"{value:.4f}"


def _verdicts(result: Result) -> Table:
    table = Table(title="Verdicts", title_justify="left")
    for column in ("verdict", "status", "reason"):
        table.add_column(column, overflow="fold")
    for name, verdict in result.verdicts.items():
        colour = _COLOURS[verdict.status]
        table.add_row(name, f"[{colour}]{verdict.status.replace('_', ' ')}[/]", escape(verdict.reason))
    return table


def _print_losses(metrics: Metrics, out: Console) -> None:
    """Print the tensors that lose most; they are measured only if the accuracy is low."""
    if not metrics.losses:
        return
    table = Table(title="Tensors that lose most, each quantized alone", title_justify="left")
    table.add_column("tensor", overflow="fold")
    table.add_column("at its consumer", justify="right")
    table.add_column("in the simulation", justify="right")
    for loss in metrics.losses[:_SHOWN_LOSSES]:
        own = "" if loss.sqnr_db is None else f"{loss.sqnr_db:.1f} dB"
        table.add_row(escape(loss.original_name), f"{loss.consumer_sqnr_db:.1f} dB", own)
    out.print(table)


def _print_reused(result: Result, out: Console) -> None:
    """Print how many compile results, and outputs of the target, came from the cache."""
    compiled, cached = result.compilations.get("compiled", 0), result.compilations.get("from_cache", 0)
    if cached and not compiled:
        results = "the compile result was" if cached == 1 else f"all {cached} compile results were"
        out.print(f"cache: {results} reused, the compiler was not run")
    elif cached:
        out.print(f"cache: {cached} of {compiled + cached} compile results came from it")
    run, reused = result.target_runs.get("run", 0), result.target_runs.get("from_cache", 0)
    if reused:
        out.print(f"cache: the outputs of {reused} of {run + reused} runs on the target came from it")


def _print_tail(cut: SplitPoint, out: Console) -> None:
    """Print what was moved to the tail: the unsupported nodes, how many depend on them, and the tail's inputs."""
    unsupported = [node for node in cut.nodes if not node.behind]
    out.print(f"{len(cut.nodes)} nodes at the end cannot run on the target and are moved to tail.onnx:")
    for node in unsupported[:_SHOWN_FINDINGS]:
        out.print(f"  {escape(node.name)} ({escape(node.op)}): {escape(node.reason)}")
    if len(unsupported) > _SHOWN_FINDINGS:
        out.print(f"  {len(unsupported) - _SHOWN_FINDINGS} more in result.json")
    if len(cut.nodes) > len(unsupported):
        out.print(f"  {len(cut.nodes) - len(unsupported)} more depend on the outputs of these")
    out.print(f"  inputs of tail.onnx: {escape(', '.join(boundary.tensor for boundary in cut.crossing))}")


def _print_findings(result: Result, out: Console) -> None:
    serious = [f for f in result.findings if f.severity is not Severity.NOTE]
    for finding in serious[:_SHOWN_FINDINGS]:
        out.print(f"{finding.code} {finding.severity}: {escape(str(finding.place))}: {escape(finding.message)}")
        if finding.fix:
            out.print(f"  fix: {escape(finding.fix)}", soft_wrap=True)  # a command to copy stays one line
    if len(serious) > _SHOWN_FINDINGS:
        out.print(f"{len(serious) - _SHOWN_FINDINGS} more findings in result.json")
    notes = len(result.findings) - len(serious)
    if notes:
        out.print(f"{notes} findings of severity note in result.json")
