"""What the page shows of a run, derived from its result: the operators along the depth, islands, and tensor rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.backend import TensorReadBack
from dovetail.encoding import DType
from dovetail.plan.rows import ExpandedScale, PlanRow
from dovetail.qdq.emit import QUANTIZED
from dovetail.report.result import OperatorRow, Result
from dovetail.storage import Reason

# Outcome of a tensor that was read back -> what the table says.
_SHOWN = {"changed": "changed", "not_found": "not found", "absorbed": "fused", "matched": "as planned"}
_NEVER_STORED, _NOT_READ_BACK = "never stored", "not read back"
# In this order; rows that are not as planned come first.
DEPLOYED = (*_SHOWN.values(), _NEVER_STORED, _NOT_READ_BACK)
# The reasons of a plan row that say that an input of an operator is a constant.
_CONSTANT = (Reason.CONSTANT, Reason.BIAS)


@dataclass(frozen=True, slots=True)
class Layer:
    """One operator along the depth: the precision in which it reads its activations, and the SQNR of its output.

    ``dtype``: None if the plan has no row for what it reads. ``weight``: that of its weight. ``converted``: that of an
    activation which it reads in another precision. ``is_boundary``: an input is converted for it.
    """

    name: str
    op_type: str
    dtype: DType | None
    weight: DType | None
    converted: DType | None
    sqnr_db: float | None
    detail: str
    is_boundary: bool

    @property
    def precision(self) -> str:
        if self.dtype is None:
            return "not planned"
        weight = "" if self.weight is None else f", weight {self.weight}"
        return f"{self.dtype}{weight}{'' if self.converted is None else f', an input in {self.converted}'}"


@dataclass(frozen=True, slots=True)
class Island:
    """Neighboring operators with a wider precision than most: numbers of the first and the last layer."""

    first: int
    last: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One row of the plan beside what was found in the compiled model; ``deployed`` is one of ``DEPLOYED``."""

    key: str
    name: str
    place: str
    planned: str
    scale: str
    why: str
    deployed: str
    found: str
    sqnr_db: float | None


def layers_of(result: Result) -> list[Layer]:
    """The operators in graph order; of a result without them (schema before 4), the tensors in order of the plan."""
    quality = {tensor.tensor: tensor.sqnr_db for tensor in result.metrics.tensors}
    tensors = {row.tensor: row for row in result.plan if row.edge is None}
    if not result.operators:
        return [
            Layer(row.original_name, "", row.dtype, None, None, quality.get(row.tensor), row.detail, False)
            for row in tensors.values()
            if row.why is not Reason.INTERIOR
        ]
    return _Depth(result, tensors, quality).layers()


class _Depth:
    """Follows the graph from operator to operator."""

    def __init__(self, result: Result, tensors: Mapping[str, PlanRow], quality: Mapping[str, float | None]) -> None:
        self._operators, self._tensors, self._quality = result.operators, tensors, quality
        edges = [(row.edge.node, row) for row in result.plan if row.edge is not None]
        self._read = {(node, row.tensor): row for node, row in edges if row.why not in _CONSTANT}
        weights = [(node, row) for node, row in edges if row.why is Reason.CONSTANT and row.dtype.is_quantized]
        self._weights = {node: row.dtype for node, row in reversed(weights)}
        self._dtypes: dict[str, DType | None] = {}  # of the operator that writes a tensor

    def layers(self) -> list[Layer]:
        return [self._layer(operator) for operator in self._operators]

    def _layer(self, operator: OperatorRow) -> Layer:
        row = self._row(operator)
        dtype = None if row is None else row.dtype
        if row is not None and row.why is Reason.INTERIOR:  # fused with the operator before it
            dtype = self._dtypes.get(row.tensor, dtype)
        before = {self._dtypes[name] for name in operator.inputs if name in self._dtypes}
        conversions = [read.dtype for name in operator.inputs if (read := self._conversion(operator.node, name))]
        self._dtypes |= dict.fromkeys(operator.outputs, dtype)
        known = [db for name in operator.outputs if (db := self._quality.get(name)) is not None]
        names = [self._tensors[name].original_name for name in operator.outputs if name in self._tensors]
        return Layer(
            next(iter(names), operator.node),
            operator.op_type,
            dtype,
            self._weights.get(operator.node),
            next((converted for converted in conversions if converted is not dtype), None),
            min(known, default=None),
            "" if row is None else row.detail,
            bool(conversions) or (dtype is not None and any(other not in (None, dtype) for other in before)),
        )

    def _conversion(self, node: str, tensor: str) -> PlanRow | None:
        """The row of an input that is converted to another dtype on its edge, and not by the kernel itself."""
        own, read = self._tensors.get(tensor), self._read.get((node, tensor))
        if own is None or read is None or own.why is Reason.ON_EDGES or own.dtype is read.dtype:
            return None
        return read

    def _row(self, operator: OperatorRow) -> PlanRow | None:
        """The plan of the first input that has one, as this operator reads it."""
        rows = (self._read.get((operator.node, name)) or self._tensors.get(name) for name in operator.inputs)
        return next((row for row in rows if row is not None), None)


def islands_of(layers: Sequence[Layer]) -> list[Island]:
    """Runs of neighboring operators that are wider than the most common precision."""
    counts = Counter(layer.dtype for layer in layers if layer.dtype is not None)
    if not counts:
        return []
    usual = min(counts, key=lambda dtype: (-counts[dtype], dtype.bits, str(dtype)))
    islands: list[Island] = []
    previous: DType | None = None
    for number, layer in enumerate(layers):
        if layer.dtype is None:
            continue
        if (layer.dtype.bits, not layer.dtype.is_quantized) > (usual.bits, not usual.is_quantized):
            if islands and previous is layer.dtype:
                islands[-1] = Island(islands[-1].first, number, layer.dtype)
            else:
                islands.append(Island(number, number, layer.dtype))
        previous = layer.dtype
    return islands


def block_of(name: str) -> str:
    """The block of a network that a name is in: up to its first number, as ``blocks.3``, or its first part."""
    parts = re.split(r"([./])", name.lstrip("./"))
    numbers = [position for position, part in enumerate(parts) if part.isdecimal()]
    if numbers:
        return "".join(parts[: numbers[0] + 1])
    return parts[0] if len(parts) > 1 else ""


def tensor_rows(result: Result) -> list[TensorRow]:
    """The plan beside the compiled model, differences first, then in the order of the plan."""
    quality = {tensor.tensor: tensor.sqnr_db for tensor in result.metrics.tensors}
    of_edge = {str(found.edge): found for found in result.read_back if found.edge is not None}
    of_name: dict[str, TensorReadBack] = {}
    for found in result.read_back:
        if found.edge is None:
            of_name.setdefault(found.tensor, found)
            of_name[found.emitted.removesuffix(QUANTIZED.format(""))] = found
    rows = []
    for row in result.plan:
        read_back = (
            of_edge.get(str(row.edge)) if row.edge else of_name.get(row.tensor) or of_name.get(row.original_name)
        )
        rows.append(_tensor_row(row, read_back, None if row.edge else quality.get(row.tensor)))
    return sorted(rows, key=lambda row: DEPLOYED.index(row.deployed))


def _tensor_row(row: PlanRow, found: TensorReadBack | None, sqnr_db: float | None) -> TensorRow:
    place = f"input {row.edge.index} of {row.edge.node}" if row.edge else "as produced"
    return TensorRow(
        str(row.edge or row.tensor),
        row.original_name,
        place,
        str(row.dtype),
        scale_text(row),
        f"{row.why}: {row.detail}" if row.detail else str(row.why),
        _deployed(row) if found is None else _SHOWN[str(found.outcome)],
        "" if found is None else found.detail,
        sqnr_db,
    )


def _deployed(row: PlanRow) -> str:
    """What is known of a tensor that was not read back."""
    return _NEVER_STORED if row.why is Reason.INTERIOR else _NOT_READ_BACK


def scale_text(row: PlanRow) -> str:
    """Scale and zero point in few words; those of channels and blocks as their range."""
    if row.scale is None:
        return ""
    if isinstance(row.scale, ExpandedScale):
        return f"{_extent(row.scale.channel)} x integers, blocks of {row.block_size}"
    if isinstance(row.scale, list):
        unit = f"blocks of {row.block_size}" if row.block_size else f"per channel on axis {row.axis}"
        return f"{_extent(row.scale)}, {unit}"
    return f"{row.scale:.4g}, zero point {row.zero_point}"


def _extent(numbers: list[object]) -> str:
    flat = [value for part in numbers for value in (part if isinstance(part, list) else [part])]
    while any(isinstance(value, list) for value in flat):
        flat = [value for part in flat for value in (part if isinstance(part, list) else [part])]
    values = [float(str(value)) for value in flat]
    return f"{min(values):.4g} to {max(values):.4g}" if values else "none"
