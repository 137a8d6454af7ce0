"""Encodings 1.0.0: two lists of entries with flat scales and offsets, output channel by output channel; no axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dovetail.encoding import Array, Granularity
from dovetail.encodings.by_offset import changed_label, integer_encoding
from dovetail.encodings.records import FLOAT_BITS, LEAST_BITS, MOST_BITS, TensorEncoding
from dovetail.encodings.values import (
    bad,
    choice,
    flag,
    integers,
    required,
    same_size,
    scales,
    shown,
    whole,
    without_list,
)

VERSION = "1.0.0"
_TYPES = {
    "PER_TENSOR": Granularity.TENSOR,
    "PER_CHANNEL": Granularity.AXIS,
    "PER_BLOCK": Granularity.BLOCK,
    "LPBQ": Granularity.EXPANDED_BLOCK,
}
_NAMES = {granularity: name for name, granularity in _TYPES.items()}
_KEYS = {"name", "dtype", "bw", "is_sym", "enc_type", "scale", "offset"}
_BLOCK_KEYS = {*_KEYS, "block_size"}
_LPBQ_KEYS = {*_BLOCK_KEYS, "compressed_bw", "per_block_int_scale"}
_MOST_BLOCK = 1 << 31


def read_entries(section: object, key: str, is_parameter: bool) -> Iterator[tuple[TensorEncoding, set[str]]]:
    """The entries of a section, each with the keys that are not understood."""
    if not isinstance(section, list):
        raise bad(key, f"it is {shown(section)}; expected a list of entries")
    for index, entry in enumerate(section):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise bad(f"{key}[{index}]", "it is not a JSON object with a name")
        granularity = _TYPES[choice(entry.get("enc_type"), "enc_type", entry["name"], _TYPES)]
        known = {Granularity.BLOCK: _BLOCK_KEYS, Granularity.EXPANDED_BLOCK: _LPBQ_KEYS}.get(granularity, _KEYS)
        yield _entry(entry["name"], entry, granularity, is_parameter), set(entry) - known


def _entry(name: str, entry: Mapping[str, Any], granularity: Granularity, is_parameter: bool) -> TensorEncoding:
    bits = whole(required(entry, "bw", name), "bw", name, LEAST_BITS, MOST_BITS)
    if choice(entry.get("dtype"), "dtype", name, ("INT", "FLOAT")) == "FLOAT":
        if bits not in FLOAT_BITS or granularity is not Granularity.TENSOR:
            raise bad(name, f"FLOAT with {bits} bits, {_NAMES[granularity]}; expected 16 or 32 bits, PER_TENSOR")
        return TensorEncoding(name, bits, is_parameter, is_float=True)
    symmetric = flag(required(entry, "is_sym", name), "is_sym", name)
    given_scale, given_offset = required(entry, "scale", name), required(entry, "offset", name)
    if granularity is Granularity.TENSOR:
        given_scale, given_offset = without_list(given_scale), without_list(given_offset)
    scale = scales(given_scale, "scale", name)
    offset = integers(given_offset, "offset", name, 1 - (1 << bits), 0)
    if granularity is not Granularity.TENSOR:
        scale, offset = _flat(scale, "scale", name), _flat(offset, "offset", name)
    elif scale.ndim:
        raise bad(name, f"PER_TENSOR with {scale.size} scales; expected one")
    same_size(scale, offset, ("scale", "offset"), name)
    more: dict[str, Any] = {"is_parameter": is_parameter, "granularity": granularity}
    if granularity in (Granularity.BLOCK, Granularity.EXPANDED_BLOCK):
        more["block_size"] = whole(required(entry, "block_size", name), "block_size", name, 1, _MOST_BLOCK)
    if granularity is Granularity.EXPANDED_BLOCK:
        return _expanded(name, entry, bits, scale, offset, more)
    return integer_encoding(name, bits, symmetric, scale, offset, **more)


def _flat(array: Array, key: str, name: str) -> Array:
    if array.ndim > 1:
        raise bad(name, f"{key} is a list of lists; expected a flat list")
    return array.reshape(-1)


def _expanded(
    name: str, entry: Mapping[str, Any], bits: int, scale: Array, offset: Array, more: dict[str, Any]
) -> TensorEncoding:
    """LPBQ: ``bw`` bits with one scale per channel, of which a block uses ``compressed_bw`` times an integer scale."""
    compressed = whole(required(entry, "compressed_bw", name), "compressed_bw", name, LEAST_BITS, bits - 1)
    most = 1 << (bits - compressed)
    int_scale = _flat(
        integers(required(entry, "per_block_int_scale", name), "per_block_int_scale", name, 1, most),
        "per_block_int_scale",
        name,
    )
    if not entry["is_sym"] or np.any(offset != -(1 << (bits - 1))):
        raise bad(name, f"LPBQ must be symmetric, with is_sym true and every offset {-(1 << (bits - 1))}")
    if int_scale.size % scale.size:
        raise bad(name, f"{int_scale.size} integer scales are not a multiple of its {scale.size} scales per channel")
    zeros = np.zeros(int_scale.shape, np.int64)
    return TensorEncoding(
        name, compressed, signed=True, symmetric=True, scale=scale, zero_point=zeros, int_scale=int_scale,
        expanded_bits=bits, **more,
    )  # fmt: skip


def why_not(entry: TensorEncoding) -> str:
    """Why this version cannot have an entry; empty if it can."""
    return ""


def lost(entry: TensorEncoding) -> str:
    """What of an entry this version cannot say, although it has the same real values; empty if nothing."""
    return changed_label(entry)


def written(entry: TensorEncoding) -> dict[str, Any]:
    """The entry, with flat blocks, as JSON values."""
    values: dict[str, Any] = {"bw": entry.bits, "dtype": "INT", "enc_type": _NAMES[entry.granularity]}
    if entry.is_float:
        return {**values, "dtype": "FLOAT", "name": entry.name}
    values |= {"is_sym": entry.symmetric, "name": entry.name, "offset": np.ravel(entry.offset).tolist()}
    values["scale"] = np.ravel(entry.scale).tolist()
    if entry.is_blocked:
        values["block_size"] = entry.block_size
    if entry.int_scale is not None:
        offset = -(1 << (entry.expanded_bits - 1))
        values |= {"bw": entry.expanded_bits, "compressed_bw": entry.bits, "offset": [offset] * entry.scale.size}
        values["per_block_int_scale"] = np.ravel(entry.int_scale).tolist()
    return dict(sorted(values.items()))


def document(
    parameters: Mapping[str, Any], activations: Mapping[str, Any], header: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole file: written entries by name."""
    lists = {"activation_encodings": [*activations.values()], "param_encodings": [*parameters.values()]}
    return {**lists, **header}
