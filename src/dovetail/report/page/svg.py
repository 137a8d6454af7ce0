"""Drawing of charts: axes, scales and labels, as SVG whose colors come from the page's style sheet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.report.page.markup import Content, Markup, scrollable, tag

# About the width of a character of a label, in units of the drawing.
CHAR = 6.6


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear scale from values to positions in the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high <= self.low:
            return (self.start + self.end) / 2
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values on the axis, about as many as asked for."""
        span = self.high - self.low
        if span <= 0 or not math.isfinite(span):
            return [self.low]
        raw = span / max(count, 1)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        numbers = itertools.takewhile(lambda n: n * step <= self.high + step * 1e-9, itertools.count(first))
        return [number * step for number in numbers]


def padded(values: Sequence[float], *, with_zero: bool = False) -> tuple[float, float]:
    """The extent of values with a margin, so that no mark is on the frame."""
    low, high = min(values), max(values)
    low = min(low, 0.0) if with_zero else low
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return (low if with_zero and low == 0 else low - margin), high + margin


def figure(
    number: str, title: str, description: str, width: int, height: int, *marks: Content, least: int = 0
) -> Markup:
    """A chart with a title and a description for a screen reader; ``least``: below this width it scrolls."""
    number = f"chart-{number}"
    labels = f"{number}-title {number}-desc"
    drawing = tag(
        "svg",
        tag("title", title, id=f"{number}-title"),
        tag("desc", description, id=f"{number}-desc"),
        *marks,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_labelledby=labels,
        style=f"min-width:{least or min(width, 300)}px;max-width:{int(width * 1.25)}px",
    )
    caption = tag("figcaption", title)
    return tag("figure", caption, scrollable(drawing, title) if least else drawing)


def text(x: float, y: float, content: str, *, anchor: str = "start", class_: str = "", **attributes: str) -> Markup:
    """A label."""
    return tag("text", content, x=x, y=y, text_anchor=anchor, class_=class_ or None, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rect(x: float, y: float, width: float, height: float, class_: str, tip: str = "") -> Markup:
    """A filled rectangle with a tooltip."""
    return tag(
        "rect",
        tag("title", tip) if tip else None,
        x=x,
        y=y,
        width=max(width, 0.5),
        height=max(height, 0.5),
        class_=class_,
    )


def dot(x: float, y: float, radius: float, class_: str, tip: str = "") -> Markup:
    """A point with a tooltip."""
    return tag("circle", tag("title", tip) if tip else None, cx=x, cy=y, r=radius, class_=class_)


def path(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    """A line through points."""
    joined = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return tag("path", d=f"M{joined}", class_=class_)


def y_axis(axis: Axis, left: float, right: float, unit: str, count: int = 5) -> Iterator[Markup]:
    """Horizontal grid lines with their values, and the unit above them."""
    for value in axis.ticks(count):
        yield line(left, axis(value), right, axis(value), "grid")
        yield text(left - 6, axis(value) + 4, f"{value:g}", anchor="end")
    yield text(left - 6, min(axis.start, axis.end) - 10, unit, anchor="end", class_="unit")


def x_axis(axis: Axis, top: float, bottom: float, unit: str, count: int = 6) -> Iterator[Markup]:
    """Vertical grid lines with their values below, and the unit at the end."""
    for value in axis.ticks(count):
        yield line(axis(value), top, axis(value), bottom, "grid")
        yield text(axis(value), bottom + 16, f"{value:g}", anchor="middle")
    yield text((axis.start + axis.end) / 2, bottom + 33, unit, anchor="middle", class_="unit")


def fitting(content: str, width: float) -> str:
    """A label that fits into a width; the end of a name says more than its beginning."""
    most = int(width / CHAR)
    return content if len(content) <= most else f"…{content[len(content) - max(most - 1, 1) :]}"
