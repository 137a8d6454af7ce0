"""Encodings 0.6.1: two JSON objects of lists, with one element per channel; neither axis nor blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dovetail.encoding import Granularity
from dovetail.encodings.by_offset import changed_label, integer_encoding
from dovetail.encodings.records import FLOAT_BITS, LEAST_BITS, MOST_BITS, TensorEncoding
from dovetail.encodings.values import bad, choice, flag, integers, required, scales, shown, whole, without_list

VERSION = "0.6.1"
_KEYS = frozenset({"bitwidth", "dtype", "is_symmetric", "max", "min", "offset", "scale"})


def read_entries(section: object, key: str, is_parameter: bool) -> Iterator[tuple[TensorEncoding, set[str]]]:
    """The entries of a section, each with the keys that are not understood."""
    if not isinstance(section, dict):
        raise bad(key, f"it is {shown(section)}; expected a JSON object of lists, by tensor name")
    for name, channels in section.items():
        if not isinstance(channels, list) or not channels:
            raise bad(name, f"it is {shown(channels)}; expected a list with one element per channel")
        if not all(isinstance(channel, dict) for channel in channels):
            raise bad(name, "an element of its list is not a JSON object")
        unknown = [channel.keys() - _KEYS for channel in channels if not channel.keys() <= _KEYS]
        yield _entry(name, channels, is_parameter), set[str]().union(*unknown)


def _entry(name: str, channels: list[dict[str, Any]], is_parameter: bool) -> TensorEncoding:
    first = channels[0]
    bits = whole(required(first, "bitwidth", name), "bitwidth", name, LEAST_BITS, MOST_BITS)
    dtype = choice(first.get("dtype", "int"), "dtype", name, ("int", "float"))
    for key in ("bitwidth", "dtype", "is_symmetric") if len(channels) > 1 else ():
        if any(channel.get(key) != first.get(key) for channel in channels):
            raise bad(name, f"its channels differ in {key}")
    if dtype == "float":
        if bits not in FLOAT_BITS or len(channels) > 1:
            raise bad(name, f"float with {bits} bits and {len(channels)} channels; expected 16 or 32 bits and one")
        return TensorEncoding(name, bits, is_parameter, is_float=True)
    symmetric = flag(required(first, "is_symmetric", name), "is_symmetric", name)
    given = {key: without_list([required(channel, key, name) for channel in channels]) for key in ("scale", "offset")}
    scale = scales(given["scale"], "scale", name)
    offset = integers(given["offset"], "offset", name, 1 - (1 << bits), 0)
    granularity = Granularity.AXIS if len(channels) > 1 else Granularity.TENSOR
    if scale.ndim != offset.ndim or scale.ndim != (granularity is Granularity.AXIS):
        raise bad(name, "scale or offset is a list; expected one number per channel")
    return integer_encoding(name, bits, symmetric, scale, offset, is_parameter=is_parameter, granularity=granularity)


def why_not(entry: TensorEncoding) -> str:
    """Why this version cannot have an entry; empty if it can."""
    return f"blocks cannot be written in {VERSION}" if entry.is_blocked else ""


def lost(entry: TensorEncoding) -> str:
    """What of an entry this version cannot say, although it has the same real values; empty if nothing."""
    return changed_label(entry)


def written(entry: TensorEncoding) -> list[dict[str, Any]]:
    """The entry as JSON values."""
    if entry.is_float:
        return [{"bitwidth": entry.bits, "dtype": "float"}]
    highest = (1 << entry.bits) - 1
    common = {"bitwidth": entry.bits, "dtype": "int", "is_symmetric": str(entry.symmetric)}
    values = zip(np.ravel(entry.scale).tolist(), np.ravel(entry.offset).tolist(), strict=True)
    return [
        {**common, "max": scale * (offset + highest), "min": scale * offset, "offset": offset, "scale": scale}
        for scale, offset in values
    ]


def document(
    parameters: Mapping[str, Any], activations: Mapping[str, Any], header: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole file: written entries by name."""
    return {"activation_encodings": dict(activations), "param_encodings": dict(parameters), **header}
