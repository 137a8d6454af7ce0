"""Matching the rows of detector outputs after a TopK, before they are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dovetail.backend import Sample
from dovetail.encoding import Array

# A row further from its partner than this fraction of the usual distance between rows was selected differently.
# Measured on RT-DETRv2 in 8 bit: partners are within 0.5 of that distance, different selections beyond 0.85.
_APART = 0.5


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """Outputs with their rows in the order of a reference; ``replaced``: per output a mask [batch, row] of the rows
    without a partner, because the TopK selected something else than in the reference."""

    outputs: Sample
    replaced: Mapping[str, Array] = field(default_factory=dict)


def match_rows(reference: Sample, other: Sample, ranked: Mapping[str, int]) -> MatchedRows:
    """Return ``other`` with the rows of its ranked outputs in the order of the reference.

    Outputs with the same number of rows form one table (boxes and their scores move together). Rows are matched
    greedily, the nearest first, with columns scaled by their standard deviation.
    """
    matched, replaced = dict(other), dict[str, Array]()
    tables: dict[tuple[int, int], list[str]] = {}
    for name, axis in ranked.items():
        if name in reference and reference[name].shape == other[name].shape:
            tables.setdefault((reference[name].shape[0], reference[name].shape[axis]), []).append(name)
    for names in tables.values():
        reference_rows, other_rows = _rows(reference, names, ranked), _rows(other, names, ranked)
        spread = reference_rows.std(axis=(0, 1), keepdims=True)
        scale = np.where(spread > 0, spread, 1.0)
        mask = np.zeros(reference_rows.shape[:2], bool)
        for batch in range(len(reference_rows)):
            order, distance = _nearest(reference_rows[batch] / scale[0], other_rows[batch] / scale[0])
            mask[batch] = distance > _APART * _usual_distance(reference_rows[batch] / scale[0])
            for name in names:
                reordered = np.array(matched[name])
                reordered[batch] = np.take(matched[name][batch], order, axis=ranked[name] - 1)
                matched[name] = reordered
        replaced |= dict.fromkeys(names, mask)
    return MatchedRows(matched, replaced)


def partnered(output: Array, replaced: Array, axis: int) -> Array:
    """Return the rows of an output that have a partner."""
    return np.moveaxis(output, axis, 1)[~replaced]


def _rows(outputs: Sample, names: list[str], ranked: Mapping[str, int]) -> Array:
    """Concatenate the columns of a table: [batch, row, column] in float64."""
    arrays = [np.moveaxis(np.asarray(outputs[name], np.float64), ranked[name], 1) for name in names]
    return np.concatenate([array.reshape(*array.shape[:2], -1) for array in arrays], axis=2)


def _distances(left: Array, right: Array) -> Array:
    distances: Array = np.linalg.norm(left[:, None] - right[None], axis=2)
    return distances


def _usual_distance(rows: Array) -> float:
    """The median distance of a row to its nearest neighbor."""
    distances = _distances(rows, rows)
    np.fill_diagonal(distances, np.inf)
    return float(np.median(distances.min(axis=1)))


def _nearest(reference: Array, other: Array) -> tuple[Array, Array]:
    """Return for each reference row its partner and the distance to it."""
    distances = np.nan_to_num(_distances(reference, other), nan=np.inf)
    partners, partner_distances = np.full(len(reference), -1), np.full(len(reference), np.inf)
    free = np.ones(len(other), bool)
    for index in np.argsort(distances, axis=None, kind="stable"):
        row, partner = divmod(int(index), len(other))
        if partners[row] < 0 and free[partner]:
            partners[row], partner_distances[row], free[partner] = partner, distances[row, partner], False
            if not free.any():
                break
    return partners, partner_distances
