"""Casts beside Quantize and Dequantize as float16 scales: ``DQ -> Cast(float16)``, ``Cast(float32) -> Q``.

Tools that convert a quantized graph to float16 leave them. A pair whose scale is float16 reads and writes float16 by
itself. TensorRT-RTX 1.7.1.116 fuses either way; it is kept for classic TensorRT, which is said to fuse a DQ into a
product only without the Cast (NVIDIA/Model-Optimizer, pull request 1289).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.layout import LAYOUT_OPS
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site
from dovetail.passes.as_float16 import HALF_SCALES_OPSET, survives
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.pair import QdqPair, insert_read, insert_store, new_scale, pair_of
from dovetail.qdq.params import is_dequantize, is_quantize

_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
_Path = tuple[ir.Node, ...]


def fold_casts(model: ir.Model) -> PassRecord:
    """Fold every such Cast, edge by edge: who reads a pair without one still reads it in float32 and with its scale."""
    infer_shapes(model)
    return _Folder(model).run()


class _Folder:
    """Changes one graph; a float16 form of a pair is made once for all edges that want it."""

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._opset = model.opset_imports.get("", 0)
        self._halves: dict[ir.Node, ir.Value] = {}
        self._changed: list[Site] = []
        self._declined: list[Site] = []

    def run(self) -> PassRecord:
        for node in [node for node in self._graph if is_dequantize(node)]:
            for path, cast in list(_casts_behind(node.outputs[0])):
                self._fold_behind(node, path, cast)
        for node in [node for node in self._graph if is_quantize(node)]:
            if node.outputs[0].uses():
                self._fold_before(node)
        return PassRecord("fold_casts", tuple(self._changed), tuple(self._declined))

    def _fold_behind(self, read: ir.Node, path: _Path, cast: ir.Node) -> None:
        pair, where = pair_of(read), origin_of(cast.outputs[0]).name
        why = pair if isinstance(pair, str) else self._why_not(pair)
        if isinstance(pair, str) or why:
            self._declined.append(Site(where, f"the Cast behind DequantizeLinear {read.name!r} stays: {why}"))
            return
        if read not in self._halves:
            self._halves[read] = self._half(pair)
        edit.replace_value(cast.outputs[0], _moved(cast, self._halves[read], path))
        edit.remove_dead(self._graph, [cast])
        self._changed.append(Site(where, "DequantizeLinear gives float16: its scale is float16"))

    def _half(self, pair: QdqPair) -> ir.Value:
        """A pair again, or the reading of a constant, with a float16 scale."""
        half = pair.scale.astype(np.float16)
        scale, stored = new_scale(pair, half, "half"), pair.stored
        if pair.store is not None and (above := _half_above(pair.store)) is not None:
            stored = insert_store(pair.store, pair, _moved(pair.store, *above), scale)
        elif pair.store is not None and not _is_exact(pair):
            rounded = new_scale(pair, half.astype(np.float32), "rounded")
            value = pair.store.inputs[0]
            stored = stored if value is None else insert_store(pair.store, pair, value, rounded)
        return insert_read(pair.read, pair, stored, scale, like=None)

    def _fold_before(self, store: ir.Node) -> None:
        """Let a Quantize read what was cast to float32 for it."""
        above, where = _half_above(store), origin_of(store.outputs[0]).name
        if above is None:
            if source := _other_cast(store):
                self._declined.append(Site(where, f"the Cast in front of QuantizeLinear stays: it is from {source}"))
            return
        reads = [node for node, _ in store.outputs[0].uses() if is_dequantize(node)]
        pair = pair_of(reads[0]) if reads else "nothing reads it"
        why = pair if isinstance(pair, str) else self._why_not(pair)
        if not why and not isinstance(pair, str) and not _is_exact(pair):
            why = "its readers in float32 would see another scale"
        if isinstance(pair, str) or why:
            self._declined.append(Site(where, f"the Cast in front of QuantizeLinear stays: {why}"))
            return
        scale = new_scale(pair, pair.scale.astype(np.float16), "half")
        edit.replace_value(store.outputs[0], insert_store(store, pair, _moved(store, *above), scale))
        edit.remove_dead(self._graph, [store])
        self._changed.append(Site(where, "QuantizeLinear takes float16: its scale is float16"))

    def _why_not(self, pair: QdqPair) -> str:
        if self._opset < HALF_SCALES_OPSET:
            return f"opset {self._opset} has no float16 scales, opset {HALF_SCALES_OPSET} is the first"
        return survives(pair.scale)


def _is_exact(pair: QdqPair) -> bool:
    return bool((pair.scale.astype(np.float16).astype(np.float32) == pair.scale).all())


def _casts_behind(value: ir.Value, path: _Path = ()) -> Iterator[tuple[_Path, ir.Node]]:
    """The Casts to float16 that read a float32 value, moved or not, and the moves in between."""
    for node, index in list(value.uses()) if value.dtype is _FLOAT else ():
        if is_op(node, "Cast") and attribute(node, "to", 0) == _HALF:
            yield path, node
        elif index == 0 and is_op(node, *LAYOUT_OPS):
            yield from _casts_behind(node.outputs[0], (*path, node))


def _half_above(store: ir.Node) -> tuple[ir.Value, _Path] | None:
    """The float16 value that was cast for a Quantize, and the moves between Cast and Quantize."""
    value = store.inputs[0]
    path: _Path = ()
    while value is not None and (node := value.producer()) is not None:
        source = node.inputs[0] if node.inputs else None
        if is_op(node, "Cast"):
            return (source, path) if source is not None and source.dtype is _HALF and value.dtype is _FLOAT else None
        if not is_op(node, *LAYOUT_OPS):
            return None
        value, path = source, (node, *path)
    return None


def _other_cast(store: ir.Node) -> str:
    """The type that a Cast to float32 directly in front of a Quantize is from, if it is not float16."""
    value = store.inputs[0]
    node = value.producer() if value is not None and value.dtype is _FLOAT else None
    source = node.inputs[0] if node is not None and is_op(node, "Cast") else None
    return source.dtype.name.lower() if source is not None and source.dtype is not None else ""


def _moved(before: ir.Node, value: ir.Value, path: _Path) -> ir.Value:
    """Moves again, on a value of another type."""
    for node in path:
        value = edit.insert(
            before,
            node.op_type,
            [value, *node.inputs[1:]],
            attributes=dict(node.attributes),
            source=node.outputs[0],
            replaces=[node],
            shape=shape_of(node.outputs[0]),
            dtype=value.dtype,
        )
    return value
