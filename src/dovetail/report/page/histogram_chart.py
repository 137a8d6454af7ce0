"""Histograms of the worst tensors, with the grid of integers that the plan chose drawn in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from dovetail.plan.rows import PlanRow
from dovetail.report.page.markup import Markup, tag
from dovetail.report.page.svg import Axis, figure, line, rect, text
from dovetail.report.result import Result, TensorRange

_WIDTH, _HEIGHT = 380, 212
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 370, 16, 130
# The distance of grid lines in units of the drawing below which only every second, fourth, ... is drawn.
_LINE_DISTANCE = 5.0


def histogram_charts(result: Result) -> list[Markup]:
    """One histogram per recorded tensor, the worst first."""
    rows = {row.tensor: row for row in result.plan if row.edge is None}
    quality = {tensor.tensor: tensor.sqnr_db for tensor in result.metrics.tensors}
    losses = {loss.original_name: loss.consumer_sqnr_db for loss in result.metrics.losses}
    if not result.metrics.ranges:
        why = "it is of an older schema" if not result.operators else "no tensor is quantized where it is produced"
        return [tag("p", f"No histogram is recorded in this result: {why}.")]
    charts = [
        _chart(number, recorded, rows.get(recorded.tensor), quality.get(recorded.tensor), losses)
        for number, recorded in enumerate(result.metrics.ranges)
    ]
    return [tag("div", charts, class_="charts")]


def grid_of(row: PlanRow | None) -> tuple[float, float, float] | None:
    """Smallest value, largest value and step of the grid of a tensor with one scale; None if it has none."""
    if row is None or not row.dtype.is_integer or isinstance(row.scale, list) or isinstance(row.zero_point, list):
        return None
    if not isinstance(row.scale, int | float) or row.zero_point is None:
        return None
    step, zero = float(row.scale), float(row.zero_point)
    return (row.dtype.grid.low - zero) * step, (row.dtype.grid.high - zero) * step, step


def _chart(
    number: int, recorded: TensorRange, row: PlanRow | None, sqnr_db: float | None, losses: Mapping[str, float]
) -> Markup:
    grid = grid_of(row)
    low, high = recorded.low, recorded.high
    if grid is not None:
        low, high = min(low, grid[0]), max(high, grid[1])
    margin = (high - low) * 0.02 or 1.0
    x = Axis(low - margin, high + margin, _LEFT, _RIGHT)
    outside = _outside(recorded, grid)
    title = recorded.original_name if sqnr_db is None else f"{recorded.original_name}: {sqnr_db:.1f} dB"
    if recorded.original_name in losses:
        title = f"{title}; alone, {losses[recorded.original_name]:.1f} dB at its consumer"
    lines = _texts(recorded, row, grid, outside)
    marks = [*_grid(x, grid), *_bars(x, recorded, grid), *_ends(x), *_captions(lines)]
    return figure(f"histogram-{number}", title, " ".join(lines), _WIDTH, _HEIGHT, marks)


def _bars(x: Axis, recorded: TensorRange, grid: tuple[float, float, float] | None) -> Iterator[Markup]:
    """Bars on a logarithmic scale, because a few outliers matter as much as the bulk."""
    most = max(recorded.counts, default=0)
    if not most:
        return
    y = Axis(0.0, math.log10(most + 1), _BOTTOM, _TOP)
    bins = len(recorded.counts)
    width = (recorded.high - recorded.low) / bins
    for number, count in enumerate(recorded.counts):
        if count:
            left, right = recorded.low + number * width, recorded.low + (number + 1) * width
            middle = (left + right) / 2
            inside = grid is None or grid[0] - grid[2] / 2 <= middle <= grid[1] + grid[2] / 2
            height = _BOTTOM - y(math.log10(count + 1))
            tip = f"{count} values from {left:.4g} to {right:.4g}"
            span = max(x(right) - x(left) - 0.4, 0.8)
            yield rect(x(left), _BOTTOM - height, span, height, "bar" if inside else "bar clipped", tip)
    for count in (1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000):
        if count <= most and (count == 1 or count * 1000 > most):
            yield text(_LEFT - 4, y(math.log10(count + 1)) + 4, f"{count:g}", anchor="end")


def _grid(x: Axis, grid: tuple[float, float, float] | None) -> Iterator[Markup]:
    """The range of the grid as a band, its ends, and lines at every so many steps."""
    if grid is None:
        return
    low, high, step = grid
    yield rect(x(low), _TOP, x(high) - x(low), _BOTTOM - _TOP, "band")
    every = _every(x, step)
    steps = round((high - low) / step)
    for number in range(0, steps + 1, every):
        yield line(x(low + number * step), _BOTTOM, x(low + number * step), _BOTTOM + 6, "tick")
    for end in (low, high):
        yield line(x(end), _TOP - 4, x(end), _BOTTOM + 8, "limit")


def _every(x: Axis, step: float) -> int:
    every = 1
    while (x(x.low + every * step) - x.start) < _LINE_DISTANCE and every < 1 << 20:
        every *= 2
    return every


def _ends(x: Axis) -> Iterator[Markup]:
    yield line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "axis")
    for value, anchor in ((x.low, "start"), (x.high, "end")):
        yield text(x(value), _BOTTOM + 22, f"{value:.3g}", anchor=anchor)
    if x.low < 0 < x.high and min(x(0) - x.start, x.end - x(0)) > 40:
        yield text(x(0), _BOTTOM + 22, "0", anchor="middle")


def _captions(lines: list[str]) -> Iterator[Markup]:
    for number, content in enumerate(lines):
        yield text(_LEFT, _BOTTOM + 42 + 15 * number, content)


def _outside(recorded: TensorRange, grid: tuple[float, float, float] | None) -> float:
    """The share of values in bins outside the grid."""
    total = sum(recorded.counts)
    if grid is None or not total:
        return 0.0
    width = (recorded.high - recorded.low) / len(recorded.counts)
    middles = [recorded.low + (number + 0.5) * width for number in range(len(recorded.counts))]
    low, high = grid[0] - grid[2] / 2, grid[1] + grid[2] / 2
    clipped = sum(count for middle, count in zip(middles, recorded.counts, strict=True) if not low <= middle <= high)
    return clipped / total


def _texts(
    recorded: TensorRange, row: PlanRow | None, grid: tuple[float, float, float] | None, outside: float
) -> list[str]:
    samples = f"{recorded.samples} sample{'s' * (recorded.samples != 1)}"
    lines = [f"values {recorded.low:.4g} to {recorded.high:.4g} on {samples}"]
    if row is not None and grid is not None:
        lines.append(f"{row.dtype} from {grid[0]:.4g} to {grid[1]:.4g}, step {grid[2]:.3g}")
        # Bins, not values, are compared with the grid.
        share = "less than 0.01%" if 0 < outside < 1e-4 else f"about {outside:.2%}"
        lines.append(f"{share} outside of the grid" if outside else "no bin is outside of the grid")
    elif row is not None:
        lines.append(f"{row.dtype}: no grid with one scale")
    return lines
