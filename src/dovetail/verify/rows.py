"""Matching the rows of detector outputs that a TopK has put in order, before they are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dovetail.backend import Sample
from dovetail.encoding import Array

# A row that is further from its partner than this part of the usual distance between rows is another selection.
# Measured on RT-DETRv2: in 8 bit partners are within half of that distance, other selections beyond 0.85 of it.
_APART = 0.5


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """Outputs with their rows in the order of a reference; ``replaced`` marks, per output [batch, row], those for which
    the TopK selected something else than in the reference, so that the row has no partner."""

    outputs: Sample
    replaced: Mapping[str, Array] = field(default_factory=dict)


def match_rows(reference: Sample, other: Sample, ranked: Mapping[str, int]) -> MatchedRows:
    """``other`` with the rows of its ranked outputs in the order of the reference.

    Outputs whose rows are equally many are one table (boxes and their scores move together). The nearest rows find each
    other first, columns measured in units of their own spread.
    """
    matched, replaced = dict(other), dict[str, Array]()
    tables: dict[tuple[int, int], list[str]] = {}
    for name, axis in ranked.items():
        if name in reference and reference[name].shape == other[name].shape:
            tables.setdefault((reference[name].shape[0], reference[name].shape[axis]), []).append(name)
    for names in tables.values():
        rows = [_rows(reference, names, ranked), _rows(other, names, ranked)]
        spread = rows[0].std(axis=(0, 1), keepdims=True)
        scale = np.where(spread > 0, spread, 1.0)
        marks = np.zeros(rows[0].shape[:2], bool)
        for batch in range(len(rows[0])):
            order, distance = _nearest(rows[0][batch] / scale[0], rows[1][batch] / scale[0])
            marks[batch] = distance > _APART * _usual_distance(rows[0][batch] / scale[0])
            for name in names:
                moved = np.array(matched[name])
                moved[batch] = np.take(matched[name][batch], order, axis=ranked[name] - 1)
                matched[name] = moved
        replaced |= dict.fromkeys(names, marks)
    return MatchedRows(matched, replaced)


def partnered(output: Array, replaced: Array, axis: int) -> Array:
    """The rows of an output that have a partner."""
    return np.moveaxis(output, axis, 1)[~replaced]


def _rows(outputs: Sample, names: list[str], ranked: Mapping[str, int]) -> Array:
    """All the columns of a table: [batch, row, column] in float64."""
    parts = [np.moveaxis(np.asarray(outputs[name], np.float64), ranked[name], 1) for name in names]
    return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=2)


def _distances(left: Array, right: Array) -> Array:
    apart: Array = np.linalg.norm(left[:, None] - right[None], axis=2)
    return apart


def _usual_distance(rows: Array) -> float:
    """The median distance of a row to the one nearest to it."""
    apart = _distances(rows, rows)
    np.fill_diagonal(apart, np.inf)
    return float(np.median(apart.min(axis=1)))


def _nearest(reference: Array, other: Array) -> tuple[Array, Array]:
    """Per reference row, its partner and the distance to it."""
    distance = np.nan_to_num(_distances(reference, other), nan=np.inf)
    order, found = np.full(len(reference), -1), np.full(len(reference), np.inf)
    free = np.ones(len(other), bool)
    for place in np.argsort(distance, axis=None, kind="stable"):
        row, partner = divmod(int(place), len(other))
        if order[row] < 0 and free[partner]:
            order[row], found[row], free[partner] = partner, distance[row, partner], False
            if not free.any():
                break
    return order, found
