"""A plan as rows of a table: what ``result.json`` shows, and what ``plan.json`` holds to be edited and given back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, Encoding, Granularity, QParams
from dovetail.errors import InputError
from dovetail.model.origin import each_value, origin_of
from dovetail.storage import Choice, Edge, FloatStorage, Plan, Storage

SCHEMA_VERSION = 1
Numbers = float | list[Any] | None


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One decision: a tensor, or one edge of it as ``node:input``; scale and zero point are None for float."""

    tensor: str
    edge: str | None
    original_name: str
    original_exact: bool
    dtype: DType
    scale: Numbers
    zero_point: Numbers
    group: str | None
    reason: str
    symmetric: bool = False
    granularity: Granularity = Granularity.TENSOR
    axis: int | None = None
    block_size: int = 0


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The content of ``plan.json``."""

    target: str
    precision: str
    quantized_io: bool
    rows: tuple[PlanRow, ...]
    schema_version: int = SCHEMA_VERSION


def plan_rows(plan: Plan, model: ir.Model) -> Iterator[PlanRow]:
    """Every decision of a plan, tensors first, with the names that the caller knows."""
    values = {v.name or "": v for v in each_value(model.graph)}
    nodes = {node.name or "": node for node in model.graph}
    for name, choice in plan.tensors.items():
        yield _row(name, None, values[name], choice)
    for edge, choice in plan.edges.items():
        value = nodes[edge.node].inputs[edge.index]
        if value is None:
            raise ValueError(f"the plan speaks of input {edge}, which is empty")
        yield _row(value.name or "", str(edge), value, choice)


def write_plan(plan: Plan, model: ir.Model, path: Path) -> None:
    """Write ``plan.json``, and beside it ``plan.npz`` when constants came with their own integers."""
    content = PlanFile(plan.target, plan.precision, plan.quantized_io, tuple(plan_rows(plan, model)))
    if plan.stored:
        arrays = {str(edge): _plain(array) for edge, array in plan.stored.items()}
        np.savez(path.with_suffix(".npz"), allow_pickle=False, **arrays)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))


def read_plan(path: Path) -> Plan:
    """Read a plan file, edited or not; an unknown key or a value of the wrong kind is refused by name."""
    try:
        raw: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path}: not a plan ({error})") from error
    if not isinstance(raw, dict) or raw.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{path}: not a plan of schema version {SCHEMA_VERSION}")
    _refuse_unknown(raw, PlanFile, str(path))
    for number, row in enumerate(raw.get("rows", [])):
        if isinstance(row, dict):
            _refuse_unknown(row, PlanRow, f"{path}: row {number}")
    try:
        content = msgspec.convert(raw, PlanFile)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from error
    tensors = {row.tensor: _choice(row, path) for row in content.rows if row.edge is None}
    edges = {_edge(row.edge, path): _choice(row, path) for row in content.rows if row.edge is not None}
    stored: dict[Edge, Array] = {}
    if path.with_suffix(".npz").exists():
        with np.load(path.with_suffix(".npz")) as arrays:
            stored = {_edge(name, path): _typed(arrays[name], edges[_edge(name, path)]) for name in arrays.files}
    return Plan(content.target, content.precision, tensors, edges, stored, content.quantized_io)


def _plain(array: Array) -> Array:
    """NumPy's files know no 4-bit or float8 type: those are kept as their bytes."""
    return array if array.dtype.isbuiltin == 1 else array.view(np.uint8)


def _typed(array: Array, choice: Choice) -> Array:
    dtype = choice.storage.dtype.numpy
    return array if array.dtype == dtype else array.view(dtype)


def _row(tensor: str, edge: str | None, value: ir.Value, choice: Choice) -> PlanRow:
    origin, storage = origin_of(value), choice.storage
    if isinstance(storage, FloatStorage):
        return PlanRow(tensor, edge, origin.name, origin.exact, storage.dtype, None, None, choice.group, choice.reason)
    encoding = storage.encoding
    return PlanRow(
        tensor,
        edge,
        origin.name,
        origin.exact,
        storage.dtype,
        storage.scale.astype(np.float64).tolist(),
        storage.zero_point.tolist(),
        choice.group,
        choice.reason,
        encoding.symmetric,
        encoding.granularity,
        storage.axis,
        encoding.block_size,
    )


def _choice(row: PlanRow, path: Path) -> Choice:
    try:
        return Choice(_storage(row), row.reason, row.group)
    except ValueError as error:
        raise InputError(f"{path}: {row.edge or row.tensor}: {error}") from error


def _storage(row: PlanRow) -> Storage:
    if not row.dtype.is_quantized:
        return FloatStorage(row.dtype)
    if row.scale is None or row.zero_point is None:
        raise ValueError(f"{row.dtype} needs a scale and a zero point")
    encoding = Encoding(row.dtype, row.symmetric, row.granularity, row.block_size)
    return QParams(encoding, np.asarray(row.scale), np.asarray(row.zero_point), row.axis)


def _edge(text: str | None, path: Path) -> Edge:
    node, _, index = (text or "").rpartition(":")
    if not node or not index.isdigit():
        raise InputError(f"{path}: {text!r} is not an edge, which is written node:input")
    return Edge(node, int(index))


def _refuse_unknown(raw: dict[str, Any], kind: type, where: str) -> None:
    unknown = sorted(set(raw) - {field.name for field in dataclasses.fields(kind)})
    if unknown:
        raise InputError(f"{where}: unknown key {unknown[0]!r}")
