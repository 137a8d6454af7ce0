"""What the result tells of the planned graph: its operators in order, and histograms of the tensors that lose most."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.encoding import Array
from dovetail.model.observe import ObservedRun
from dovetail.report.result import OperatorRow, TensorLoss, TensorQuality, TensorRange
from dovetail.storage import Plan

# How many tensors have a histogram, of how many bins, and how many calibration samples it is made of.
_TENSORS, _BINS, _SAMPLES = 12, 64, 4


def operator_rows(model: ir.Model) -> tuple[OperatorRow, ...]:
    """Every operator in the order of the graph, with the tensors that it reads and writes, without constants."""
    return tuple(
        OperatorRow(node.name or "", node.op_type, _names(_activations(node)), _names(node.outputs))
        for node in model.graph
    )


def _activations(node: ir.Node) -> Iterator[ir.Value]:
    return (value for value in node.inputs if value is not None and value.const_value is None)


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(value.name or "" for value in values)


def lowest_tensors(tensors: Sequence[TensorQuality], losses: Sequence[TensorLoss], plan: Plan) -> list[TensorQuality]:
    """The tensors that cost most accuracy alone, if that was measured, then those with the lowest SQNR.

    Of tensors that share their scale (a group) only the worst, because a reshaped tensor has the same values.
    """
    rank = {loss.original_name: number for number, loss in enumerate(losses)}
    measured = [tensor for tensor in tensors if tensor.sqnr_db is not None]
    measured.sort(key=lambda tensor: (rank.get(tensor.original_name, len(rank)), tensor.sqnr_db))
    of_group: dict[str, TensorQuality] = {}
    for tensor in measured:
        of_group.setdefault(plan.tensors[tensor.tensor].group or tensor.tensor, tensor)
    return list(of_group.values())[:_TENSORS]


def tensor_ranges(
    model: ir.Model, worst: Sequence[TensorQuality], samples: Callable[[], Iterator[Sample]], workdir: Path
) -> tuple[TensorRange, ...]:
    """The range and the histogram of tensors in float, on the first calibration samples."""
    if not worst:
        return ()
    run = ObservedRun(model, [tensor.tensor for tensor in worst], workdir)
    values: dict[str, list[Array]] = {tensor.tensor: [] for tensor in worst}
    for sample in itertools.islice(samples(), _SAMPLES):
        for name, array in run.run(sample):
            values[name].append(np.array(array, np.float32).reshape(-1))
    return tuple(_range(tensor, values[tensor.tensor]) for tensor in worst)


def _range(tensor: TensorQuality, arrays: Sequence[Array]) -> TensorRange:
    real = np.concatenate(arrays)
    finite = real[np.isfinite(real)].astype(np.float64)
    if not finite.size:
        return TensorRange(tensor.tensor, tensor.original_name, 0.0, 0.0, (), len(arrays))
    low, high = float(finite.min()), float(finite.max())
    bins = np.zeros(finite.size, np.int64)
    if high > low:
        bins = np.minimum((finite - low) * (_BINS / (high - low)), _BINS - 1).astype(np.int64)
    counts = np.bincount(bins, minlength=_BINS)
    return TensorRange(tensor.tensor, tensor.original_name, low, high, tuple(counts.tolist()), len(arrays))
