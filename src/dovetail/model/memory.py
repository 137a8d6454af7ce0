"""Refuse tensors that do not fit into memory before anything is allocated for them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable

import onnx_ir as ir

from dovetail.errors import InputError
from dovetail.model.edit import shape_of
from dovetail.model.origin import origin_of

_GIBIBYTE = 1 << 30


def memory_bytes() -> int:
    """The memory of this machine, or the limit of this process (``ulimit -v``) if that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        import resource
    except ImportError:  # not on Windows
        return physical
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return physical if limit == resource.RLIM_INFINITY else min(physical, limit)


def require_memory(values: Iterable[ir.Value]) -> None:
    """Refuse tensors of which one alone does not fit; those of unknown shape or type are not checked."""
    available = memory_bytes()
    for value in values:
        size = size_bytes(value)
        if size > available:
            raise InputError(
                f"tensor {origin_of(value).name!r} of shape {list(shape_of(value) or ())} needs "
                f"{size / _GIBIBYTE:.1f} GiB, but this machine or process has {available / _GIBIBYTE:.1f} GiB"
            )


def require_memory_together(values: Iterable[ir.Value]) -> None:
    """Refuse tensors that are held at the same time and do not fit together."""
    values = list(values)
    require_memory(values)
    total, available = sum(map(size_bytes, values)), memory_bytes()
    if total > available:
        largest = max(values, key=size_bytes)
        raise InputError(
            f"the tensors that are calibrated need {total / _GIBIBYTE:.1f} GiB together, but this machine or process "
            f"has {available / _GIBIBYTE:.1f} GiB; the largest is {origin_of(largest).name!r}: "
            "use a smaller batch or size"
        )


def size_bytes(value: ir.Value) -> int:
    """The size of a tensor; 0 if it is not known."""
    shape = shape_of(value)
    if shape is None or value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return 0
    return math.ceil(math.prod(shape) * value.dtype.itemsize)
