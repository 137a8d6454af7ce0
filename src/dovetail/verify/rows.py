"""Matching the rows of detector outputs that a TopK has put in order, before they are compared."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.encoding import Array
from dovetail.target import Sample


def match_rows(reference: Sample, other: Sample, ranked: Mapping[str, int]) -> Sample:
    """``other`` with the rows of its ranked outputs in the order of the reference.

    Outputs whose rows are equally many are one table (boxes and their scores move together). Every reference row takes
    the nearest row that is still free, columns measured in units of their own spread.
    """
    matched = dict(other)
    tables: dict[tuple[int, int], list[str]] = {}
    for name, axis in ranked.items():
        if name in reference:
            tables.setdefault((reference[name].shape[0], reference[name].shape[axis]), []).append(name)
    for names in tables.values():
        rows = [_rows(reference, names, ranked), _rows(other, names, ranked)]
        spread = rows[0].std(axis=(0, 1), keepdims=True)
        scale = np.where(spread > 0, spread, 1.0)
        for batch in range(len(rows[0])):
            order = _nearest(rows[0][batch] / scale[0], rows[1][batch] / scale[0])
            for name in names:
                moved = np.array(matched[name])
                moved[batch] = np.take(matched[name][batch], order, axis=ranked[name] - 1)
                matched[name] = moved
    return matched


def _rows(outputs: Sample, names: list[str], ranked: Mapping[str, int]) -> Array:
    """All the columns of a table: [batch, row, column] in float64."""
    parts = [np.moveaxis(np.asarray(outputs[name], np.float64), ranked[name], 1) for name in names]
    return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=2)


def _nearest(reference: Array, other: Array) -> Array:
    distance = np.linalg.norm(reference[:, None] - other[None], axis=2)
    order = np.zeros(len(reference), np.int64)
    for row in range(len(reference)):
        order[row] = int(np.argmin(distance[row]))
        distance[:, order[row]] = np.inf
    return order
