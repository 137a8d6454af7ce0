"""Encodings 2.0.0: one list of entries with the inputs and attributes of QuantizeLinear; float tensors have none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dovetail.encoding import Array, Granularity
from dovetail.encodings.records import TensorEncoding
from dovetail.encodings.values import bad, integers, numbers, required, scales, shown, whole

VERSION = "2.0.0"
READ_ONLY = "2.1.0"
_KEYS = {"name", "output_dtype", "y_scale", "y_zero_point", "axis", "block_size"}
_LPBQ_KEYS = {*(_KEYS - {"y_scale"}), "per_channel_float_scale", "per_block_int_scale"}
# 2.1.0: a scale that is itself quantized.
_META_KEYS = {"x", "x_scale", "x_zero_point", "axis", "input_dtype"}
_DTYPE = re.compile(r"(u?)int(2|4|8|16)|int(32)")
_MOST_BLOCK, _MOST_AXIS = 1 << 31, 7


def read_entries(section: object, key: str, version: str) -> Iterator[tuple[TensorEncoding, set[str]]]:
    """The entries of the list, each with the keys that are not understood."""
    if not isinstance(section, list):
        raise bad(key, f"it is {shown(section)}; expected a list of entries")
    for index, entry in enumerate(section):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise bad(f"{key}[{index}]", "it is not a JSON object with a name")
        if isinstance(entry.get("y_scale"), dict) and version == READ_ONLY:
            entry = _without_meta(entry["name"], entry)
        is_expanded = "per_block_int_scale" in entry or "per_channel_float_scale" in entry
        parsed = _expanded(entry["name"], entry) if is_expanded else _entry(entry["name"], entry)
        yield parsed, set(entry) - (_LPBQ_KEYS if is_expanded else _KEYS)


def _dtype(name: str, entry: Mapping[str, Any]) -> tuple[int, bool]:
    """(bits, signed) of an entry."""
    text = required(entry, "output_dtype", name)
    match = _DTYPE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise bad(name, f"output_dtype is {shown(text)}; expected int or uint of 2, 4, 8 or 16 bits, or int32")
    return int(match[2] or match[3]), not match[1]


def _entry(name: str, entry: Mapping[str, Any]) -> TensorEncoding:
    bits, signed = _dtype(name, entry)
    scale = scales(required(entry, "y_scale", name), "y_scale", name)
    zero_point = _zero_point(name, entry, scale.shape, bits, signed)
    axis = entry.get("axis")
    granularity = Granularity.TENSOR
    block_size = 0
    if entry.get("block_size") is not None:
        granularity = Granularity.BLOCK
        block_size = whole(entry["block_size"], "block_size", name, 1, _MOST_BLOCK)
        axis = _block_axis(name, axis, scale.ndim)
    elif axis is not None:
        granularity = Granularity.AXIS
        axis = whole(axis, "axis", name, -_MOST_AXIS - 1, _MOST_AXIS)
        if scale.ndim != 1:
            raise bad(name, f"y_scale has {scale.ndim} dimensions; with an axis and no block_size it must have 1")
    elif scale.size != 1:
        raise bad(name, f"y_scale has {scale.size} values but there is no axis")
    else:
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
    symmetric = signed and not zero_point.any()
    return TensorEncoding(
        name, bits, granularity=granularity, signed=signed, symmetric=symmetric, scale=scale, zero_point=zero_point,
        axis=axis, block_size=block_size,
    )  # fmt: skip


def _zero_point(name: str, entry: Mapping[str, Any], shape: tuple[int, ...], bits: int, signed: bool) -> Array:
    """The zero points in the shape of the scales; one for all, or none, is allowed."""
    value = entry.get("y_zero_point")
    if value is None:
        return np.zeros(shape, np.int64)
    low = -(1 << (bits - 1)) if signed else 0
    zero_point = integers(value, "y_zero_point", name, low, low + (1 << bits) - 1)
    if zero_point.shape not in ((), shape):
        raise bad(name, f"y_zero_point has shape {zero_point.shape} and the scale {shape}; they must be equal")
    return np.array(np.broadcast_to(zero_point, shape))


def _block_axis(name: str, value: object, rank: int) -> int:
    if rank < 2:
        raise bad(name, f"scales of blocks have {rank} dimensions; expected those of the tensor")
    axis = whole(value, "axis", name, -rank, rank - 1)
    return axis % rank


def _expanded(name: str, entry: Mapping[str, Any]) -> TensorEncoding:
    """LPBQ: integer scales per block times scales per channel, which have the size 1 along the block axis."""
    bits, signed = _dtype(name, entry)
    key = "per_channel_float_scale"
    scale = scales(required(entry, key, name), key, name)
    most = 1 << bits  # the integers are of twice the width
    int_scale = integers(required(entry, "per_block_int_scale", name), "per_block_int_scale", name, 1, most)
    axis = _block_axis(name, required(entry, "axis", name), int_scale.ndim)
    if scale.shape != (*int_scale.shape[:axis], 1, *int_scale.shape[axis + 1 :]):
        raise bad(name, f"{key} has shape {scale.shape}; expected that of per_block_int_scale with 1 on axis {axis}")
    if not signed or 2 * bits > 32:
        raise bad(name, f"LPBQ with {entry['output_dtype']}; expected int4 or int8")
    zero_point = _zero_point(name, entry, int_scale.shape, bits, signed)
    if zero_point.any():
        raise bad(name, "LPBQ must be symmetric, with zero points 0")
    return TensorEncoding(
        name, bits, granularity=Granularity.EXPANDED_BLOCK, signed=True, symmetric=True, scale=scale,
        zero_point=zero_point, axis=axis, int_scale=int_scale, expanded_bits=2 * bits,
        block_size=whole(required(entry, "block_size", name), "block_size", name, 1, _MOST_BLOCK),
    )  # fmt: skip


def _without_meta(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of 2.1.0 whose scale is quantized, as the entry of 2.0.0 that means the same."""
    meta = entry["y_scale"]
    if set(meta) - _META_KEYS or "float" in str(meta.get("input_dtype", "")):
        raise bad(name, "its y_scale is itself quantized in a way that is not LPBQ, which is not supported")
    x = numbers(required(meta, "x", name), "y_scale.x", name)
    x_scale = numbers(required(meta, "x_scale", name), "y_scale.x_scale", name)
    if np.any(numbers(meta.get("x_zero_point", 0), "y_scale.x_zero_point", name)) or x_scale.ndim != 1:
        raise bad(name, "its y_scale is itself quantized, not with one scale per channel, which is not supported")
    axis = whole(required(meta, "axis", name), "y_scale.axis", name, -x.ndim, x.ndim - 1) % x.ndim
    shape = [1] * x.ndim
    shape[axis] = x_scale.size
    block_axis = whole(required(entry, "axis", name), "axis", name, -x.ndim, x.ndim - 1) % x.ndim
    if block_axis == axis or any(size > 1 for i, size in enumerate(x.shape) if i not in (axis, block_axis)):
        raise bad(name, "its y_scale is itself quantized, not with one scale per channel, which is not supported")
    kept = {key: value for key, value in entry.items() if key != "y_scale"}
    return {**kept, "per_channel_float_scale": x_scale.reshape(shape).tolist(), "per_block_int_scale": meta["x"]}


def why_not(entry: TensorEncoding) -> str:
    """Why this version cannot have an entry; empty if it can."""
    if entry.is_float:
        return f"{entry.dtype_text} cannot be written in {VERSION}, where it means the same as not quantized"
    if not _DTYPE.fullmatch(entry.dtype_text):
        return f"{entry.dtype_text} is not a dtype of {VERSION}"
    if entry.expanded_bits and entry.expanded_bits != 2 * entry.bits:
        return f"LPBQ from {entry.bits} to {entry.expanded_bits} bits cannot be written in {VERSION}"
    return ""


def lost(entry: TensorEncoding) -> str:
    """What of an entry this version cannot say, although it has the same real values; empty if nothing."""
    if entry.symmetric and not entry.signed:
        return f"symmetric {entry.dtype_text} is written as {entry.dtype_text} that is not marked as symmetric"
    return ""


def written(entry: TensorEncoding) -> dict[str, Any]:
    """The entry, with nested blocks, as JSON values."""
    values: dict[str, Any] = {} if entry.axis is None else {"axis": entry.axis}
    if entry.is_blocked:
        values["block_size"] = entry.block_size
    values |= {"name": entry.name, "output_dtype": entry.dtype_text}
    if entry.int_scale is not None:
        expanded = {"per_block_int_scale": entry.int_scale.tolist(), "per_channel_float_scale": entry.scale.tolist()}
        return {**values, **expanded}
    values["y_scale"] = entry.scale.tolist()
    return {**values, "y_zero_point": entry.zero_point.tolist()} if entry.zero_point.any() else values
