"""Comparing two runs of a model on the same samples: per output, per tensor, and the top class."""

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
from dovetail.qdq.emit import DEQUANTIZED
from dovetail.qdq.quantized_io import quantized_sample
from dovetail.storage import Plan
from dovetail.verify.rows import match_rows, partnered

# The part of all rows that two runs must have in common with the reference to be compared on these, and by how much of
# all rows they may differ in it.
_SAME_SHARE, _DIFFERENT_SHARE = 0.25, 0.1


class RowCounts(NamedTuple):
    """The number of rows of an output after a TopK, and of those that the two runs selected differently."""

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
    """The comparison of two runs: sums per output, and per classifier output how often the top class is the same.

    For outputs after a TopK also ``partnered``, the sums over the rows that both selected, and ``rows``, how many rows
    there are and how many the other run selected differently. ``integer``: outputs that are not float. ``per_sample``:
    SQNR of every sample, of float outputs, after a TopK on the rows that both selected.
    """

    outputs: Mapping[str, Comparison] = field(default_factory=dict)
    top1: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    integer: frozenset[str] = frozenset()
    partnered: Mapping[str, Comparison] = field(default_factory=dict)
    rows: Mapping[str, RowCounts] = field(default_factory=dict)
    per_sample: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def sqnr_db(self) -> dict[str, float]:
        """SQNR of the float outputs; an index or a flag has none."""
        return {name: comparison.sqnr_db for name, comparison in self.outputs.items() if name not in self.integer}


def compare_runs(
    reference: Iterable[Sample],
    other: Iterable[Sample],
    ranked: Mapping[str, int] | None = None,
    classes: Collection[str] = (),
    per_call: int = 1,
) -> Agreement:
    """Compare two streams of outputs sample by sample; only the sums are kept in memory.

    ``ranked`` outputs come after a TopK: their rows are matched first, because their order has no meaning. ``classes``
    are the outputs of a classifier, [batch, classes] (see ``model.class_scores``): only they have a top class.
    ``per_call``: how many samples one call has, along the first axis.
    """
    sums: dict[str, Comparison] = {}
    hits: dict[str, list[bool]] = {}
    integer: set[str] = set()
    partner_sums: dict[str, Comparison] = {}
    rows: dict[str, RowCounts] = {}
    per_sample: dict[str, list[float]] = {}
    samples = 0
    for expected_outputs, other_outputs in zip(reference, other, strict=True):
        samples += 1
        matched = match_rows(expected_outputs, other_outputs, ranked or {})
        outputs = matched.outputs
        for name, replaced in matched.replaced.items():
            both = [partnered(run[name], replaced, (ranked or {})[name]) for run in (expected_outputs, outputs)]
            of_partners = Comparison.of(*both)
            partner_sums[name] = partner_sums.get(name, Comparison()) + of_partners
            rows[name] = rows.get(name, RowCounts()) + RowCounts(replaced.size, int(replaced.sum()))
            if expected_outputs[name].dtype.kind == "f":
                per_sample.setdefault(name, []).append(of_partners.sqnr_db)
        for name, expected in expected_outputs.items():
            sums[name] = sums.get(name, Comparison()) + _sums(expected, outputs[name])
            if expected.dtype.kind != "f":
                integer.add(name)
            elif name not in matched.replaced:
                per_sample.setdefault(name, []).extend(_per_sample(expected, outputs[name], per_call))
            if name in classes:
                hits.setdefault(name, []).extend(_same_class(expected, outputs[name]))
    top1 = {name: sum(same) / len(same) for name, same in hits.items() if same}
    each = {name: tuple(values) for name, values in per_sample.items()}
    return Agreement(sums, top1, samples, frozenset(integer), partner_sums, rows, each)


def side_by_side(first: Agreement, second: Agreement) -> tuple[dict[str, float], dict[str, float]]:
    """Return comparable SQNR values of two runs, both taken against the same reference.

    Which rows a TopK selects last is chance, and a single replaced row dominates the noise: if each run selected most
    rows of the reference, or both equally few, only those rows count.
    """
    figures = first.sqnr_db(), second.sqnr_db()
    for name in first.rows.keys() & second.rows.keys() & figures[0].keys():
        if _select_alike(first.rows[name], second.rows[name]):
            for sqnr_db, agreement in zip(figures, (first, second), strict=True):
                sqnr_db[name] = agreement.partnered[name].sqnr_db
    return figures


def _select_alike(first: RowCounts, second: RowCounts) -> bool:
    """Whether the rows that were selected differently say nothing about the noise of the others.

    In a network whose scores are close together, 8 bits select most rows differently in the simulation, too. If the
    target selects as many of the reference's rows, these can be compared, unless they are too few.
    """
    if first.mostly_alike and second.mostly_alike:
        return True
    same = [counts.total - counts.replaced for counts in (first, second)]
    return min(same) >= _SAME_SHARE * first.total and abs(same[0] - same[1]) <= _DIFFERENT_SHARE * first.total


def _sums(expected: Array, output: Array) -> Comparison:
    """Compare one output; if its shape differs, or only one of the two is float, nothing counts as equal."""
    if expected.shape == output.shape and (expected.dtype.kind == "f") == (output.dtype.kind == "f"):
        return Comparison.of(expected, output)
    return Comparison(count=max(expected.size, output.size), signal=1.0, noise=math.inf, max_abs_error=math.inf)


def _per_sample(expected: Array, output: Array, per_call: int) -> list[float]:
    """SQNR of every sample of one call; an output without their axis is one sample."""
    if expected.shape != output.shape or expected.shape[:1] != (per_call,) or per_call == 1:
        return [_sums(expected, output).sqnr_db]
    return [_sums(*rows).sqnr_db for rows in zip(expected, output, strict=True)]


def _same_class(expected: Array, output: Array) -> list[bool]:
    """Per row of scores, whether the top class is the same; a row with NaN has none."""
    if expected.shape != output.shape:
        return [False] * len(expected)
    same: list[bool] = (np.argmax(expected, -1) == np.argmax(output, -1)) & ~np.isnan(output).any(-1)
    return list(map(bool, same))


def compare_tensors(
    model: ir.Model, simulation: ir.Model, plan: Plan, samples: Iterable[Sample], workdir: Path
) -> dict[str, Comparison]:
    """Compare every quantized tensor of the plan, as its consumers read it in the simulation, with the float graph."""
    quantized = [name for name, choice in plan.tensors.items() if isinstance(choice.storage, QParams)]
    float_names = {v.name for node in simulation.graph for v in node.outputs if is_float(v)}
    read_names = {name: read for name in quantized if (read := _read_name(name, float_names)) is not None}
    if not read_names:
        return {}
    float_run = ObservedRun(model, list(read_names), workdir)
    simulation_run = ObservedRun(simulation, list(read_names.values()), workdir, Mode.EXACT)
    sums = {name: Comparison() for name in read_names}
    for sample in samples:
        simulated = dict(simulation_run.run(quantized_sample(sample, plan)))
        for name, expected in float_run.run(sample):
            sums[name] += Comparison.of(expected, simulated[read_names[name]])
    return sums


def _read_name(name: str, float_names: set[str | None]) -> str | None:
    """The output of the DequantizeLinear of a quantized tensor; at a graph output it has the tensor's own name."""
    return next((read for read in (DEQUANTIZED.format(name), name) if read in float_names), None)
