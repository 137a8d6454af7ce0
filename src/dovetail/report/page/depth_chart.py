"""The chart along the depth of the network: SQNR per operator, and below it the precision map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dovetail.encoding import DType
from dovetail.report.page.markup import Content, Markup, details, table, tag
from dovetail.report.page.run_view import Island, Layer, block_of, islands_of
from dovetail.report.page.svg import CHAR, Axis, dot, figure, fitting, line, path, rect, text, y_axis

WIDTH = 960
_LEFT, _RIGHT, _TOP = 92, 948, 28
_SQNR_HEIGHT, _LANE, _GAP = 210, 20, 44
# Above this the chart does not tell figures apart: 16-bit tensors have 60 to 90 dB, identical ones 200.
_MOST_DB = 90.0
# With more operators than this only the worst ones are marked, and the precision map has no gaps between operators.
_MARKED = 500
_LISTED_ISLANDS = 40
# With more islands than this the table is shown on request; and the widest label of a block.
_OPEN_ISLANDS, _BLOCK_LABEL = 8, 150.0


def depth_chart(
    layers: Sequence[Layer],
    other: Mapping[str, float | None] | None = None,
    other_name: str = "",
    *,
    has_operators: bool = True,
) -> list[Markup]:
    """The SQNR of every operator along the depth, its precision, islands and boundaries.

    ``other``: the SQNR of another run by name, drawn as a second line. ``has_operators``: the layers are operators and
    not tensors, of which it is not known what is computed from what.
    """
    planned = [layer for layer in layers if layer.dtype is not None]
    if not planned:
        return [tag("p", "No operator has a planned precision: the run stopped before the plan.")]
    lanes = sorted({layer.dtype for layer in planned if layer.dtype is not None}, key=lambda d: (d.bits, str(d)))
    x = Axis(-0.5, len(planned) - 0.5, _LEFT, _RIGHT)
    known = [layer.sqnr_db for layer in planned if layer.sqnr_db is not None]
    lanes_top = _TOP + (_SQNR_HEIGHT if known else 0) + _GAP
    bottom = lanes_top + len(lanes) * _LANE
    marks: list[Content] = [*_blocks(planned, x, bottom)]
    if known:
        marks += _sqnr(planned, x, other or {})
    marks += _lanes(planned, lanes, x, lanes_top)
    if has_operators:
        marks += [text(_LEFT, bottom + 36, "input"), text(_RIGHT, bottom + 36, "output", anchor="end")]
    islands = islands_of(planned) if has_operators else []
    boundaries = sum(layer.is_boundary for layer in planned)
    shown = "SQNR and precision" if known else "Precision"
    title = f"{shown} of every operator, from the input (left) to the output (right)"
    if not has_operators:
        title = f"{shown} of every tensor, in the order of the plan"
    chart = figure(
        "depth",
        title,
        _description(planned, known, islands, boundaries, "operators" if has_operators else "tensors"),
        WIDTH,
        bottom + 44,
        marks,
        least=820,
    )
    note = _islands(planned, islands, boundaries)
    if not has_operators:
        note = tag("p", "Islands and boundaries are not known: the result does not record the operators.")
    return [_key(lanes, has_operators, other_name if other else ""), chart, note]


def _description(
    layers: Sequence[Layer], known: Sequence[float], islands: Sequence[Island], boundaries: int, kind: str
) -> str:
    measured = [layer for layer in layers if layer.sqnr_db is not None]
    text_ = f"{len(layers)} {kind}."
    if kind == "operators":
        text_ += f" {len(islands)} islands of wider precision, {boundaries} boundaries."
    if not known:
        return text_
    worst = min(measured, key=lambda layer: layer.sqnr_db or 0.0)
    return f"{text_} The SQNR is {min(known):.1f} to {max(known):.1f} dB; lowest at {worst.name}."


def _sqnr(layers: Sequence[Layer], x: Axis, other: Mapping[str, float | None]) -> Iterator[Markup]:
    values = [value for layer in layers for value in (layer.sqnr_db, other.get(layer.name)) if value is not None]
    highest = min(max(values), _MOST_DB)
    y = Axis(min(0.0, min(values)), highest * 1.05 + 1, _TOP + _SQNR_HEIGHT, _TOP)
    yield from y_axis(y, _LEFT, _RIGHT, "SQNR dB")
    second = [(x(i), y(value)) for i, layer in enumerate(layers) if (value := other.get(layer.name)) is not None]
    if second:
        yield path(second, "second")
    measured = [(i, layer, layer.sqnr_db) for i, layer in enumerate(layers) if layer.sqnr_db is not None]
    for part in _neighbors([(i, value) for i, _, value in measured]):
        yield path([(x(i), y(value)) for i, value in part], "series")
    marked = sorted(sorted(measured, key=lambda row: row[2])[:_MARKED])
    radius = 3.2 if len(marked) < 250 else 2.0
    for i, layer, value in marked:
        tip = f"{layer.name} ({layer.op_type}): {value:.1f} dB, {layer.precision}"
        yield dot(x(i), y(value), radius, f"point {_class(layer.dtype)}", tip)


def _neighbors(points: Sequence[tuple[int, float]]) -> Iterator[list[tuple[int, float]]]:
    """Points in runs without a gap: between them nothing is quantized, so there is no SQNR."""
    part: list[tuple[int, float]] = []
    for number, value in points:
        if part and number != part[-1][0] + 1:
            yield part
            part = []
        part.append((number, value))
    if part:
        yield part


def _lanes(layers: Sequence[Layer], lanes: Sequence[DType], x: Axis, top: float) -> Iterator[Markup]:
    """One lane per precision, so that it does not depend on color; a vertical line at every boundary."""
    yield text(_LEFT - 6, top - 8, "precision", anchor="end", class_="unit")
    for number, dtype in enumerate(lanes):
        y = top + number * _LANE
        yield text(_LEFT - 6, y + 14, str(dtype), anchor="end")
        yield rect(_LEFT, y + 2, _RIGHT - _LEFT, _LANE - 4, "lane")
    runs = _runs(layers)
    if len(runs) <= _MARKED:
        yield from (_run(layers, lanes, run, x, top) for run in runs)
    else:
        yield from (_joined(layers, runs, dtype, x, top + number * _LANE) for number, dtype in enumerate(lanes))
    starts = [x(i - 0.5) for i, layer in enumerate(layers) if layer.is_boundary]
    if starts:
        below = top + len(lanes) * _LANE + 3
        yield tag("path", d="".join(f"M{start:.1f} {top - 3:.0f}V{below:.0f}" for start in starts), class_="boundary")


def _run(layers: Sequence[Layer], lanes: Sequence[DType], run: tuple[int, int], x: Axis, top: float) -> Markup:
    """Neighboring operators in one precision, with a tooltip."""
    first, last = run
    layer = layers[first]
    y = top + lanes.index(layer.dtype) * _LANE if layer.dtype is not None else top
    names = layer.name if first == last else f"{layer.name} to {layers[last].name}"
    count = f"{last - first + 1} operator{'s' * (last > first)}"
    start, end = x(first - 0.5), x(last + 0.5)
    return rect(
        start, y + 2, end - start, _LANE - 4, f"run {_class(layer.dtype)}", f"{names}: {count} in {layer.precision}"
    )


def _joined(layers: Sequence[Layer], runs: Sequence[tuple[int, int]], dtype: DType, x: Axis, y: float) -> Markup:
    """All runs of one precision as one mark, because thousands would make the page large."""
    own = [(x(first - 0.5), x(last + 0.5)) for first, last in runs if layers[first].dtype is dtype]
    boxes = (f"M{start:.1f} {y + 2:.0f}H{end:.1f}v{_LANE - 4}H{start:.1f}z" for start, end in own)
    return tag("path", d="".join(boxes), class_=f"run {_class(dtype)}")


def _runs(layers: Sequence[Layer]) -> list[tuple[int, int]]:
    """First and last number of neighboring operators in one precision."""
    runs: list[tuple[int, int]] = []
    for i, layer in enumerate(layers):
        if runs and layers[runs[-1][0]].dtype is layer.dtype:
            runs[-1] = (runs[-1][0], i)
        else:
            runs.append((i, i))
    return runs


def _blocks(layers: Sequence[Layer], x: Axis, bottom: float) -> Iterator[Markup]:
    """Where a block of the network begins, by the names of its tensors; of labels that would overlap the longest
    block's is kept."""
    blocks = [block_of(layer.name) for layer in layers]
    starts = [i for i, block in enumerate(blocks) if i == 0 or block != blocks[i - 1]]
    lengths = [end - start for start, end in zip(starts, [*starts[1:], len(blocks)], strict=True)]
    taken: list[tuple[float, float]] = []
    for _, i in sorted(zip(lengths, starts, strict=True), key=lambda run: (-run[0], run[1])):
        start, label = x(i - 0.5), fitting(blocks[i], _BLOCK_LABEL)
        end = start + len(label) * CHAR + 8
        if label and end < _RIGHT and all(end < left or start > right for left, right in taken):
            taken.append((start, end))
            yield line(start, _TOP, start, bottom, "block")
            yield text(start, bottom + 16, label)


def _key(lanes: Sequence[DType], has_operators: bool, other_name: str) -> Markup:
    entries = [
        tag("li", tag("span", class_=f"swatch {_class(dtype)}", aria_hidden="true"), str(dtype)) for dtype in lanes
    ]
    if has_operators:
        entries.append(
            tag("li", tag("span", class_="swatch boundary-key", aria_hidden="true"), "boundary: a conversion")
        )
    if other_name:
        entries.append(tag("li", tag("span", class_="swatch second-key", aria_hidden="true"), f"SQNR of {other_name}"))
    return tag("ul", entries, class_="key", aria_label="Key of the chart")


def _islands(layers: Sequence[Layer], islands: Sequence[Island], boundaries: int) -> Markup:
    count = f"{boundaries} boundaries between precisions" if boundaries != 1 else "1 boundary between precisions"
    if not islands:
        return tag("p", f"No island: no operator is wider than the precision of most. {count.capitalize()}.")
    rows = []
    for island in islands[:_LISTED_ISLANDS]:
        inside = layers[island.first : island.last + 1]
        kinds = ", ".join(dict.fromkeys(layer.op_type for layer in inside if layer.op_type))
        reason = next((layer.detail for layer in inside if layer.detail), "")
        rows.append((inside[0].name, inside[-1].name, str(len(inside)), str(island.dtype), kinds, reason))
    headers = ("first", "last", "operators", "precision", "kinds", "reason")
    left = len(islands) - len(rows)
    caption = f"Islands: neighboring operators with a wider precision than most ({len(islands)}; {count})"
    note = tag("p", f"{left} more islands are in the plan.") if left else None
    return details(caption, table(caption, headers, rows, numeric=(2,)), note, open_=len(islands) <= _OPEN_ISLANDS)


def _class(dtype: DType | None) -> str:
    """The class that colors a precision: by its bits, and float apart from integers."""
    if dtype is None:
        return "p-none"
    return f"p-i{dtype.bits}" if dtype.is_quantized else f"p-f{dtype.bits}"
