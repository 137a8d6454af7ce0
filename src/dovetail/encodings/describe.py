"""Encodings in words and in rows of JSON, and the differences of two files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail.encoding import Array, Granularity
from dovetail.encodings.records import Encodings, TensorEncoding

_KINDS = {None: "tensor", False: "activation", True: "parameter"}
# Scales that differ by less are the same number, written in float32 by one tool and in float64 by another.
_RTOL = 1e-7


def kind(entry: TensorEncoding) -> str:
    return _KINDS[entry.is_parameter]


def described(entry: TensorEncoding) -> str:
    """``int8 per channel``, ``int4 LPBQ, blocks of 32``, ``float16``."""
    if entry.is_float:
        return entry.dtype_text
    text = f"{'symmetric ' if entry.symmetric and not entry.signed else ''}{entry.dtype_text} "
    match entry.granularity:
        case Granularity.TENSOR:
            return f"{text}per tensor"
        case Granularity.AXIS:
            return f"{text}per channel"
        case Granularity.BLOCK:
            return f"{text}blocks of {entry.block_size}"
        case _:
            return f"{text}LPBQ, blocks of {entry.block_size}"


def real_range(entry: TensorEncoding) -> tuple[float, float]:
    """The smallest and the largest real value that an integer entry represents."""
    scale = entry.scale
    if entry.int_scale is not None:  # flat ones have all blocks of a channel in a row
        scale = np.repeat(scale, entry.int_scale.size // scale.size) if entry.axis is None else scale
        scale = scale * entry.int_scale
    low, high = ((stored - entry.zero_point) * scale for stored in (entry.lowest, entry.lowest + (1 << entry.bits) - 1))
    return float(np.min(low)), float(np.max(high))


def counts(encodings: Encodings) -> list[tuple[str, str, int]]:
    """(kind, how, number of entries), the most frequent first."""
    counter = Counter((kind(entry), described(entry)) for entry in encodings.entries.values())
    return [(*key, count) for key, count in sorted(counter.items(), key=lambda item: (-item[1], item[0]))]


def row(entry: TensorEncoding) -> dict[str, Any]:
    """An entry as values of JSON, without its arrays."""
    values: dict[str, Any] = {"name": entry.name, "kind": kind(entry), "dtype": entry.dtype_text}
    if entry.is_float:
        return values
    low, high = real_range(entry)
    values |= {"granularity": entry.granularity.value, "axis": entry.axis, "scales": int(entry.scale.size)}
    values |= {"symmetric": entry.symmetric, "scale_min": float(entry.scale.min()), "low": low, "high": high}
    values |= {"scale_max": float(entry.scale.max()), "zero_point_min": int(entry.zero_point.min())}
    values |= {"zero_point_max": int(entry.zero_point.max())}
    return values | ({"block_size": entry.block_size} if entry.is_blocked else {})


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor that two files do not encode in the same way, and how they differ."""

    name: str
    how: str


def differences(first: Encodings, second: Encodings) -> tuple[Difference, ...]:
    """What differs between two files, in the order of the first; versions and unknown axes are not compared."""
    found = [Difference(n, _only("first", e)) for n, e in first.entries.items() if n not in second.entries]
    found += [Difference(n, _only("second", e)) for n, e in second.entries.items() if n not in first.entries]
    for name, entry in first.entries.items():
        other = second.entries.get(name)
        if other is not None and (how := "; ".join(_compared(entry, other))):
            found.append(Difference(name, how))
    return tuple(found)


def _only(file: str, entry: TensorEncoding) -> str:
    return f"only in the {file} file: {described(entry)}"


def _compared(first: TensorEncoding, second: TensorEncoding) -> Iterator[str]:
    if described(first) != described(second):
        yield f"{described(first)} -> {described(second)}"
        return
    if first.is_float:
        return
    if None not in (first.is_parameter, second.is_parameter) and first.is_parameter != second.is_parameter:
        yield f"{kind(first)} -> {kind(second)}"
    if None not in (first.axis, second.axis) and first.axis != second.axis:
        yield f"axis {first.axis} -> {second.axis}"
    if first.is_blocked and first.needs_shape != second.needs_shape:
        yield "blocks in different order, which only the model can match: add --model MODEL"
        return
    yield from _arrays("scale", first.scale, second.scale, _RTOL)
    yield from _arrays("zero point", first.zero_point, second.zero_point, 0.0)
    if first.int_scale is not None and second.int_scale is not None:
        yield from _arrays("integer scale", first.int_scale, second.int_scale, 0.0)


def _arrays(label: str, first: Array, second: Array, rtol: float) -> Iterator[str]:
    """How two arrays differ: their shapes, or how many values and the largest difference."""
    if first.shape != second.shape:
        yield f"{label} of shape {list(first.shape)} -> {list(second.shape)}"
        return
    differ = ~np.isclose(first, second, rtol=rtol, atol=0)
    if not differ.any():
        return
    of_all = f" ({int(differ.sum())} of {differ.size} differ)" if differ.size > 1 else ""
    index = np.argmax(np.abs(first - second) / np.maximum(np.abs(first), np.finfo(np.float64).tiny))
    yield f"{label} {first.flat[index]:.6g} -> {second.flat[index]:.6g}{of_all}"
