"""Comparing two ways of running a model on the same samples: per output, per tensor, and the top class."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.encoding import Array, QParams
from dovetail.model.edit import is_float
from dovetail.model.observe import ObservedRun
from dovetail.model.session import Mode
from dovetail.numerics.metrics import Comparison
from dovetail.qdq.boundary import stored_sample
from dovetail.qdq.emit import READ
from dovetail.storage import Plan
from dovetail.verify.rows import match_rows, partnered


class RowCounts(NamedTuple):
    """The rows of an output behind a TopK: all, and those whose selection differs."""

    total: int = 0
    replaced: int = 0

    def __add__(self, other: object) -> RowCounts:
        if not isinstance(other, RowCounts):
            return NotImplemented
        return RowCounts(self.total + other.total, self.replaced + other.replaced)

    @property
    def mostly_alike(self) -> bool:
        return 2 * self.replaced <= self.total


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two runs side by side: sums per output, and how often the largest class is the same, per classifier output.

    Of outputs behind a TopK also ``partnered``, the sums of the rows that both selected, and ``rows``: how many there
    are, and for how many the other run selected something else.
    """

    outputs: Mapping[str, Comparison] = field(default_factory=dict)
    top1: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    integer: frozenset[str] = frozenset()
    partnered: Mapping[str, Comparison] = field(default_factory=dict)
    rows: Mapping[str, RowCounts] = field(default_factory=dict)

    def sqnr_db(self) -> dict[str, float]:
        """SQNR of the float outputs; an index or a flag has none."""
        return {name: one.sqnr_db for name, one in self.outputs.items() if name not in self.integer}


def compare_runs(
    reference: Iterable[Sample],
    other: Iterable[Sample],
    ranked: Mapping[str, int] | None = None,
    classes: Collection[str] = (),
) -> Agreement:
    """Walk two streams of outputs in step and add up; nothing but the sums is held.

    ``ranked`` outputs stand behind a TopK: their rows are matched first, because the order means nothing.
    ``classes`` are the outputs of a classifier, [batch, classes] (``model.class_scores`` tells which): only they have a
    top class, and each counts its own rows.
    """
    sums: dict[str, Comparison] = {}
    hits: dict[str, list[bool]] = {}
    integer: set[str] = set()
    partners: dict[str, Comparison] = {}
    selected: dict[str, RowCounts] = {}
    samples = 0
    for one, other_one in zip(reference, other, strict=True):
        samples += 1
        matched = match_rows(one, other_one, ranked or {})
        two = matched.outputs
        for name, marks in matched.replaced.items():
            pair = [partnered(run[name], marks, (ranked or {})[name]) for run in (one, two)]
            partners[name] = partners.get(name, Comparison()) + Comparison.of(*pair)
            selected[name] = selected.get(name, RowCounts()) + RowCounts(marks.size, int(marks.sum()))
        for name, expected in one.items():
            sums[name] = sums.get(name, Comparison()) + _sums(expected, two[name])
            if expected.dtype.kind != "f":
                integer.add(name)
            if name in classes:
                hits.setdefault(name, []).extend(_same_class(expected, two[name]))
    top1 = {name: sum(marks) / len(marks) for name, marks in hits.items() if marks}
    return Agreement(sums, top1, samples, frozenset(integer), partners, selected)


def side_by_side(one: Agreement, two: Agreement) -> tuple[dict[str, float], dict[str, float]]:
    """SQNR of two runs against the same reference, fit to be compared.

    Which rows a TopK selects last is chance, and one that was exchanged drowns all the others: where most rows were
    selected in both runs, only those count.
    """
    found = one.sqnr_db(), two.sqnr_db()
    for name in one.rows.keys() & two.rows.keys() & found[0].keys():
        if one.rows[name].mostly_alike and two.rows[name].mostly_alike:
            for figures, agreement in zip(found, (one, two), strict=True):
                figures[name] = agreement.partnered[name].sqnr_db
    return found


def _sums(expected: Array, found: Array) -> Comparison:
    """The sums of one output; where it came out with another length, or integers as floats, nothing in it is equal."""
    if expected.shape == found.shape and (expected.dtype.kind == "f") == (found.dtype.kind == "f"):
        return Comparison.of(expected, found)
    return Comparison(count=max(expected.size, found.size), signal=1.0, noise=math.inf, max_abs_error=math.inf)


def _same_class(expected: Array, found: Array) -> list[bool]:
    """Per row of scores, whether the largest one is the same; NaN has no largest one."""
    if expected.shape != found.shape:
        return [False] * len(expected)
    same: list[bool] = (np.argmax(expected, -1) == np.argmax(found, -1)) & ~np.isnan(found).any(-1)
    return list(map(bool, same))


def compare_tensors(
    model: ir.Model, simulation: ir.Model, plan: Plan, samples: Iterable[Sample], workdir: Path
) -> dict[str, Comparison]:
    """Every stored tensor of the plan: float graph against simulation, as its readers see it."""
    stored = [name for name, choice in plan.tensors.items() if isinstance(choice.storage, QParams)]
    inside = {v.name for node in simulation.graph for v in node.outputs if is_float(v)}
    seen = {name: read for name in stored if (read := _read_name(name, inside)) is not None}
    if not seen:
        return {}
    float_run = ObservedRun(model, list(seen), workdir)
    quantized_run = ObservedRun(simulation, list(seen.values()), workdir, Mode.EXACT)
    sums = {name: Comparison() for name in seen}
    for sample in samples:
        quantized = dict(quantized_run.run(stored_sample(sample, plan)))
        for name, expected in float_run.run(sample):
            sums[name] += Comparison.of(expected, quantized[seen[name]])
    return sums


def _read_name(name: str, inside: set[str | None]) -> str | None:
    """What readers of a stored tensor see: its own DequantizeLinear, which takes the tensor's name at an output."""
    return next((read for read in (READ.format(name), name) if read in inside), None)
