"""A plan as rows of a table: shown in ``result.json``, and written to ``plan.json``, which ``--plan`` reads back."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from dovetail.document import convert, encode, read_document
from dovetail.edge import Edge
from dovetail.encoding import Array, DType, Encoding, Granularity, QParams, expanded_qparams, int_scale_dtype
from dovetail.errors import InputError
from dovetail.model.origin import each_value, origin_of
from dovetail.model.write import write_whole
from dovetail.storage import Choice, FloatStorage, Plan, Reason, ScaleSource, Storage

SCHEMA_VERSION = 2
# A scale or zero point in JSON: one number, a list for per-channel and per-block ones, None for float.
JsonNumbers = int | float | list[Any] | None


@dataclass(frozen=True, slots=True)
class ExpandedScale:
    """The scale of expanded blocks in JSON: ``integers`` per block, times ``channel``, for blocks of ``bits``."""

    channel: list[Any]
    integers: list[Any]
    bits: int


@dataclass(frozen=True, slots=True)
class PlanRow:
    """The plan of one tensor, or of one edge; scale and zero point are None for float."""

    tensor: str
    edge: Edge | None
    original_name: str
    original_exact: bool
    dtype: DType
    scale: JsonNumbers | ExpandedScale
    zero_point: JsonNumbers
    group: str | None
    why: Reason
    detail: str = ""
    scale_from: ScaleSource = ScaleSource.NONE
    symmetric: bool = False
    granularity: Granularity = Granularity.TENSOR
    axis: int | None = None
    block_size: int = 0
    raised_channels: int = 0


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The content of ``plan.json``."""

    target: str
    precision: str
    quantized_io: bool
    rows: tuple[PlanRow, ...]
    schema_version: int = SCHEMA_VERSION


def plan_rows(plan: Plan, model: ir.Model) -> Iterator[PlanRow]:
    """Every row of a plan, tensors first, with their original names."""
    values = {v.name or "": v for v in each_value(model.graph)}
    nodes = {node.name or "": node for node in model.graph}
    for name, choice in plan.tensors.items():
        yield _row(name, None, values[name], choice)
    for edge, choice in plan.edges.items():
        value = nodes[edge.node].inputs[edge.index]
        if value is None:
            raise ValueError(f"the plan has a row for edge {edge}, but the node has no input there")
        yield _row(value.name or "", edge, value, choice)


def write_plan(plan: Plan, model: ir.Model, path: Path) -> tuple[Path, ...]:
    """Write ``plan.json``, and ``plan.npz`` beside it if the plan has the integers of constants."""
    content = PlanFile(plan.target, plan.precision, plan.quantized_io, tuple(plan_rows(plan, model)))
    npz_path = path.with_suffix(".npz")
    npz_path.unlink(missing_ok=True)
    if plan.stored:
        packed = io.BytesIO()
        np.savez(packed, allow_pickle=False, **{str(edge): _plain(array) for edge, array in plan.stored.items()})
        write_whole(npz_path, packed.getvalue())
    write_whole(path, encode(content, indent=1))
    return (path, npz_path) if plan.stored else (path,)


def read_plan(path: Path, float_dtype: DType = DType.F32) -> Plan:
    """Read a plan file, edited or not; an unknown key or a value of the wrong type is an error that names it.

    ``float_dtype``: the target's dtype for tensors that are not quantized; version 1 always recorded float32.
    """
    raw = read_document(path, "plan", SCHEMA_VERSION, {1: partial(_from_1, str(float_dtype))})
    _refuse_unknown(raw, PlanFile, str(path))
    rows = raw.get("rows")
    for number, row in enumerate(rows if isinstance(rows, list) else []):
        if isinstance(row, dict):
            _refuse_unknown(row, PlanRow, f"{path}: row {number}")
    try:
        content = convert(raw, PlanFile)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from error
    _refuse_twice(content.rows, path)
    tensors = {row.tensor: _choice(row, path) for row in content.rows if row.edge is None}
    edges = {row.edge: _choice(row, path) for row in content.rows if row.edge is not None}
    stored = _read_stored(path.with_suffix(".npz"), edges)
    return Plan(content.target, content.precision, tensors, edges, stored, content.quantized_io)


def row_from_1(row: dict[str, Any]) -> dict[str, Any]:
    """A row of schema version 1, which had one text as reason, in the current schema."""
    text = str(row["reason"])
    why = Reason.INTERIOR if text.endswith(", never stored") else Reason.RECORDED
    return {**{key: value for key, value in row.items() if key != "reason"}, "why": str(why), "detail": text}


def _from_1(float_dtype: str, raw: dict[str, Any]) -> dict[str, Any]:
    rows = [row_from_1(row) for row in raw["rows"]]
    return {**raw, "rows": [{**row, "dtype": float_dtype} if row["dtype"] == DType.F32 else row for row in rows]}


def _refuse_twice(rows: tuple[PlanRow, ...], path: Path) -> None:
    seen: set[str | Edge] = set()
    for row in rows:
        key = row.edge or row.tensor
        if key in seen:
            raise InputError(f"{path} has two rows for {str(key)!r}; remove one")
        seen.add(key)


def _read_stored(path: Path, edges: Mapping[Edge, Choice]) -> dict[Edge, Array]:
    """The integers of constants in a plan's ``.npz`` file, by edge; empty without the file."""
    if not path.exists():
        return {}
    try:
        with np.load(path) as arrays:
            integers = {Edge.parse(name): arrays[name] for name in arrays.files}
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} cannot be read as the quantized constants of a plan, an .npz of integers by edge ({error})"
        ) from error
    for edge in integers:
        if edge not in edges:
            raise InputError(
                f"{path} has a quantized constant for edge {str(edge)!r}, but the plan has no row for that edge"
            )
    return {edge: _typed(array, edges[edge]) for edge, array in integers.items()}


def _plain(array: Array) -> Array:
    """An array that ``.npz`` can hold: 4-bit and float8 arrays, which NumPy has no type for, as their bytes."""
    return array if array.dtype.isbuiltin == 1 else array.view(np.uint8)


def _typed(array: Array, choice: Choice) -> Array:
    dtype = choice.storage.dtype.numpy
    return array if array.dtype == dtype else array.view(dtype)


def _row(tensor: str, edge: Edge | None, value: ir.Value, choice: Choice) -> PlanRow:
    origin, storage = origin_of(value), choice.storage
    if isinstance(storage, FloatStorage):
        names = (tensor, edge, origin.name, origin.exact)
        return PlanRow(*names, storage.dtype, None, None, choice.group, choice.why, choice.detail)
    encoding = storage.encoding
    return PlanRow(
        tensor,
        edge,
        origin.name,
        origin.exact,
        storage.dtype,
        _json_scale(storage),
        storage.zero_point.tolist(),
        choice.group,
        choice.why,
        choice.detail,
        choice.scale_from,
        encoding.symmetric,
        encoding.granularity,
        storage.axis,
        encoding.block_size,
        choice.raised_channels,
    )


def _json_scale(params: QParams) -> JsonNumbers | ExpandedScale:
    if params.int_scale is None or params.channel_scale is None:
        numbers: JsonNumbers = params.scale.astype(np.float64).tolist()
        return numbers
    channel, integers = params.channel_scale.astype(np.float64).tolist(), params.int_scale.tolist()
    return ExpandedScale(channel, integers, params.encoding.expanded_bits)


def _choice(row: PlanRow, path: Path) -> Choice:
    try:
        return Choice(_storage(row), row.why, row.detail, row.group, row.scale_from, row.raised_channels)
    except (TypeError, ValueError) as error:  # NumPy raises TypeError for a list with an element that is not a number
        raise InputError(f"{path}: the row of {str(row.edge or row.tensor)!r} is not valid: {error}") from error


def _storage(row: PlanRow) -> Storage:
    if not row.dtype.is_quantized:
        return FloatStorage(row.dtype)
    if row.scale is None or row.zero_point is None:
        raise ValueError(f"{row.dtype} requires a scale and a zero point, but one of them is null")
    if isinstance(row.scale, ExpandedScale):
        return _expanded(row, row.scale)
    encoding = Encoding(row.dtype, row.symmetric, row.granularity, row.block_size)
    zero_point = np.asarray(row.zero_point, np.float64)
    low, high = (row.dtype.grid.low, row.dtype.grid.high) if row.dtype.is_integer else (0, 0)
    if not np.all((zero_point >= low) & (zero_point <= high) & (zero_point == np.rint(zero_point))):
        raise ValueError(f"zero_point must be a whole number from {low} to {high} for {row.dtype}")
    return QParams(encoding, np.asarray(row.scale), zero_point.astype(np.int32), row.axis)


def _expanded(row: PlanRow, scale: ExpandedScale) -> QParams:
    encoding = Encoding(row.dtype, row.symmetric, row.granularity, row.block_size, scale.bits)
    integers = np.asarray(scale.integers)
    if row.axis is None or integers.dtype.kind != "i" or np.any(np.asarray(row.zero_point)):
        raise ValueError("expanded blocks require an axis, whole numbers as integer scales, and zero points 0")
    most, dtype = 1 << encoding.scale_bits, int_scale_dtype(encoding.scale_bits)
    return expanded_qparams(encoding, np.asarray(scale.channel), np.clip(integers, 0, most + 1).astype(dtype), row.axis)


def _refuse_unknown(raw: dict[str, Any], kind: type, where: str) -> None:
    names = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(raw) - names)
    if unknown:
        raise InputError(f"{where} has the unknown key {unknown[0]!r}; expected one of {', '.join(sorted(names))}")
