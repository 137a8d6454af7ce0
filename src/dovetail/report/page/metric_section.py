"""Accuracy and SQNR with their spread; sizes, latency and where the model runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dovetail.printable import size_text
from dovetail.report.page.figure_charts import Bar, bars, spread_chart, spread_text
from dovetail.report.page.markup import Content, Markup, section, table, tag
from dovetail.report.result import Comparisons, Metrics, Result, Spread
from dovetail.verify.metric import Accuracy

_SIDES = ("float", "simulation", "target")
_LISTED_OPERATIONS = 200


def metrics_section(result: Result) -> Markup:
    """What was measured on the outputs."""
    metrics = result.metrics
    parts: list[Content] = []
    for accuracy, kind in ((metrics.accuracy, "held-out"), (metrics.accuracy_emulated, "emulated")):
        if accuracy is not None:
            parts.append(_accuracy(accuracy, kind))
    rows = list(_output_rows(metrics))
    if rows:
        sides = ("simulation", "target", *(("device",) if metrics.sqnr_db.device_vs_float is not None else ()))
        parts.append(table(_caption(metrics), ("output", "measure", *sides), rows, numeric=(2, 3, 4)))
    else:
        parts.append(tag("p", "No output was compared: the run stopped before that."))
    chart = spread_chart(_spreads(metrics))
    return section("metrics", "Accuracy and SQNR", *parts, chart)


def _accuracy(accuracy: Accuracy, kind: str) -> Markup:
    names = dict.fromkeys(name for figures in accuracy.figures.values() for name in figures)
    rows = []
    for name in names:
        values = [accuracy.figures.get(side, {}).get(name) for side in _SIDES]
        change = _change(values[0], next((v for v in reversed(values) if v is not None), None))
        better = "lower is better" if name in accuracy.lower_is_better else "higher is better"
        rows.append((name, *(_value(value) for value in values), change, better))
    caption = f"{accuracy.metric} on {accuracy.data.samples} {kind} samples from {accuracy.data.source}"
    return table(caption, ("value", *_SIDES, "change from float", ""), rows, numeric=(1, 2, 3, 4))


def _change(before: float | None, after: float | None) -> str:
    return "not checked" if before is None or after is None else f"{after - before:+.4f}"


def _value(value: float | None, unit: str = "") -> str:
    if value is None:
        return "not checked"
    return f"{value:.1f}{unit}" if unit else f"{value:.4f}"


def _output_rows(metrics: Metrics) -> Iterator[tuple[str, ...]]:
    integers = metrics.equal_integers.simulation_vs_float
    for name in metrics.sqnr_db.simulation_vs_float:
        if name in integers:
            yield name, "same integers as float", *_sides(metrics.equal_integers, name)
        else:
            yield name, "SQNR against float", *_sides(metrics.sqnr_db, name, " dB")
            yield name, "largest absolute error", *_sides(metrics.max_abs_error, name)
    for name in metrics.top1_agreement.simulation_vs_float:
        yield name, "same top class as float", *_sides(metrics.top1_agreement, name)


def _sides(comparisons: Comparisons, name: str, unit: str = "") -> tuple[str, ...]:
    """Simulation and target on the same samples, and the device if one ran."""
    simulation = comparisons.simulation_where_target_ran or comparisons.simulation_vs_float
    columns = [simulation, comparisons.target_vs_float or {}]
    columns += [comparisons.device_vs_float] if comparisons.device_vs_float is not None else []
    return tuple(_value(column.get(name), unit) for column in columns)


def _caption(metrics: Metrics) -> str:
    if metrics.data is None:
        return "Outputs against float"
    count = metrics.data.samples if metrics.target_samples is None else metrics.target_samples
    return f"Outputs against float on {count} sample{'s' * (count != 1)} from {metrics.data.source}"


def _spreads(metrics: Metrics) -> dict[str, Spread]:
    """The spread by output and side, where there is more than one sample."""
    sides = {"simulation": metrics.sqnr_db_per_sample.simulation_vs_float}
    sides |= {"target": metrics.sqnr_db_per_sample.target_vs_float or {}}
    outputs = dict.fromkeys(name for column in sides.values() for name in column)
    return {
        f"{name}, {side}": column[name]
        for name in outputs
        for side, column in sides.items()
        if name in column and column[name].samples > 1
    }


def spread_of(metrics: Metrics, output: str) -> str:
    """The spread of an output over the samples, of the target if it ran."""
    per_sample = metrics.sqnr_db_per_sample
    spread = (per_sample.target_vs_float or per_sample.simulation_vs_float).get(output)
    return "not checked" if spread is None else spread_text(spread)


def cost_section(result: Result) -> Markup:
    """Latency of the fitted model beside its baselines, sizes, and what is not delegated."""
    parts = [*_estimates(result.metrics), *_measured(result.metrics), *_placement(result.metrics)]
    if not parts:
        parts = [tag("p", "Latency is not checked: this target has no estimate, and nothing was timed.")]
    sizes = result.metrics.size_bytes
    rows = [("float model" if name == "float" else name, size_text(size)) for name, size in sizes.items()]
    if rows:
        parts.append(table("Size of the files", ("file", "size"), rows, numeric=(1,)))
    return section("cost", "Latency and size", *parts)


def _estimates(metrics: Metrics) -> Iterator[Markup]:
    estimates = metrics.latency_estimate_us
    if not estimates:
        return
    fitted = estimates.get("fitted")
    rows = []
    for name, estimate in sorted(estimates.items(), key=lambda item: item[0] == "fitted"):
        ratio = None if fitted is None or name == "fitted" else fitted.ratio_to(estimate)
        note = f"{estimate.mid_us} us" + ("" if ratio is None else f" (fitted is {ratio:.2f}x)")
        bounds = (float(estimate.lower_us), float(estimate.upper_us))
        rows.append(Bar(name, float(estimate.mid_us), note, *bounds, class_="bar main" if name == "fitted" else "bar"))
    yield bars("estimates", "Latency as estimated by the vendor's compiler, not measured", "us", rows)
    unlike = sorted(name for name, e in estimates.items() if fitted and e.ops_without_cost != fitted.ops_without_cost)
    if unlike:
        yield tag("p", f"Not comparable with fitted, because other operators have no cost: {', '.join(unlike)}.")
    moved = metrics.traffic_bytes
    if moved:
        cells = [
            (name, *(size_text(count) for count in (t.read_bytes, t.write_bytes, t.spill_bytes)))
            for name, t in moved.items()
        ]
        yield table(
            "Memory traffic of one inference", ("program", "read", "written", "spilled"), cells, numeric=(1, 2, 3)
        )


def _measured(metrics: Metrics) -> Iterator[Markup]:
    here = metrics.latency_measured
    if here is not None:
        ordered = sorted(here.median_us.items(), key=lambda item: item[0] == "fitted")
        rows = [
            Bar(name, us, f"{us:.0f} us ({here.ratios[name]:.2f}x)", class_="bar main" if name == "fitted" else "bar")
            for name, us in ordered
        ]
        title = f"Measured on this machine: CPU time of one thread, {here.rounds} rounds, relative to {here.baseline}"
        yield bars("measured", title, "us", rows)
        if here.notes:
            yield tag("ul", [tag("li", note) for note in here.notes])
    if metrics.latency_device is not None:
        device = metrics.latency_device
        rows = [
            Bar("compute", device.compute_us, f"{device.compute_us:.0f} us"),
            Bar("with copies", device.latency_us, f"{device.latency_us:.0f} us"),
        ]
        yield bars(
            "device-latency", f"Measured on the device: median of {device.runs} runs by {device.source}", "us", rows
        )


def _placement(metrics: Metrics) -> Iterator[Markup]:
    placement = metrics.placement
    if placement is None:
        return
    partitions = f"{placement.partitions} partition{'s' * (placement.partitions != 1)}"
    count = len(placement.undelegated)
    yield tag("p", f"{placement.delegated} operations are delegated to the backend in {partitions}, {count} are not.")
    kinds = Counter((op.operation, op.reason) for op in placement.undelegated)
    rows = [(operation, str(number), reason) for (operation, reason), number in kinds.most_common(_LISTED_OPERATIONS)]
    if rows:
        yield table("Operations that are not delegated", ("operation", "count", "reason"), rows, numeric=(1,))
