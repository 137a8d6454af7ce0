"""Suggest a ``--shape`` for a model with dynamic inputs: one that its graph allows."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.errors import InputError
from dovetail.model.check_shapes import check_shapes
from dovetail.model.read import Shapes, pin_shapes

# Sizes of images and sequences in the order in which they are tried; a graph with fixed sizes inside allows few.
_SIZES = (224, 320, 640, 256, 384, 512, 128, 96, 64, 48, 32, 28, 16, 8)


def require_static(model: ir.Model) -> None:
    """Refuse a model with an input whose shape is not static."""
    for value in model.graph.inputs:
        if value.shape is None or not value.shape.is_static():
            shape = (
                "unknown" if value.shape is None else ",".join(str(getattr(d, "value", d) or "?") for d in value.shape)
            )
            raise InputError(
                f"input {value.name!r} has no static shape ({shape}); set it, for example with {shape_line(model)}"
            )


def shape_line(model: ir.Model) -> str:
    """The ``--shape`` options to copy: batch 1, and the first usual size that fits the graph."""
    shapes = [_shapes(model, size) for size in _SIZES]
    fitting = next((candidate for candidate in shapes if _fits(model, candidate)), shapes[0])
    return " ".join(f"--shape {name}={','.join(map(str, shape))}" for name, shape in fitting.items())


def _shapes(model: ir.Model, size: int) -> Shapes:
    """The inputs that are not static, with 1 for a dynamic first dimension and ``size`` for every other one."""
    shapes: dict[str, tuple[int, ...]] = {}
    bound: dict[str, int] = {}
    for value in model.graph.inputs:
        if value.shape is not None and value.shape.is_static():
            continue
        dims = [None, 3, None, None] if value.shape is None else list(value.shape)
        sizes = []
        for index, dim in enumerate(dims):
            free = 1 if index == 0 else size
            symbol = getattr(dim, "value", None)
            sizes.append(dim if isinstance(dim, int) else free if symbol is None else bound.setdefault(symbol, free))
        shapes[str(value.name)] = tuple(sizes)
    return shapes


def _fits(model: ir.Model, shapes: Shapes) -> bool:
    pinned = model.clone()
    try:
        pin_shapes(pinned, shapes)
        check_shapes(pinned)
    except InputError:
        return False
    return True
