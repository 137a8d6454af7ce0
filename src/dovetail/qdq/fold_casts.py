"""Fold Casts next to Q and DQ nodes into float16 scales: ``DQ -> Cast(float16)``, ``Cast(float32) -> Q``.

Tools that convert a quantized graph to float16 leave such Casts. A Q/DQ pair with a float16 scale reads and writes
float16 itself. TensorRT-RTX 1.7.1.116 fuses with and without the Cast; the pass is for TensorRT (the standard SDK),
which is reported to fuse a DQ into a MatMul, Gemm or Conv only without the Cast (NVIDIA/Model-Optimizer, pull request
1289).
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
from dovetail.passes.as_float16 import HALF_SCALES_OPSET, why_not_float16
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.pair import QdqPair, insert_dequantize, insert_quantize, new_scale, pair_of
from dovetail.qdq.params import is_dequantize, is_quantize

_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
_Path = tuple[ir.Node, ...]


def fold_casts(model: ir.Model) -> PassRecord:
    """Fold every such Cast, edge by edge: a consumer without a Cast still reads float32, with the old scale."""
    infer_shapes(model)
    return _Folder(model).run()


class _Folder:
    """Edits one graph; the float16 copy of a Q/DQ pair is shared by all edges that need it."""

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._opset = model.opset_imports.get("", 0)
        self._halves: dict[ir.Node, ir.Value] = {}
        self._changed: list[Site] = []
        self._declined: list[Site] = []

    def run(self) -> PassRecord:
        for node in [node for node in self._graph if is_dequantize(node)]:
            for path, cast in list(_casts_after(node.outputs[0])):
                self._fold_after(node, path, cast)
        for node in [node for node in self._graph if is_quantize(node)]:
            if node.outputs[0].uses():
                self._fold_before(node)
        return PassRecord("fold_casts", tuple(self._changed), tuple(self._declined))

    def _fold_after(self, dequantize: ir.Node, path: _Path, cast: ir.Node) -> None:
        pair, where = pair_of(dequantize), origin_of(cast.outputs[0]).name
        why = pair if isinstance(pair, str) else self._why_not(pair)
        if isinstance(pair, str) or why:
            self._declined.append(Site(where, f"the Cast after DequantizeLinear {dequantize.name!r} is kept: {why}"))
            return
        if dequantize not in self._halves:
            self._halves[dequantize] = self._half(pair)
        edit.replace_value(cast.outputs[0], _with_layout(cast, self._halves[dequantize], path))
        edit.remove_dead(self._graph, [cast])
        self._changed.append(Site(where, "Cast folded into DequantizeLinear, whose scale is now float16"))

    def _half(self, pair: QdqPair) -> ir.Value:
        """A copy of a Q/DQ pair, or of the DQ of a constant, with a float16 scale."""
        half = pair.scale.astype(np.float16)
        scale, quantized = new_scale(pair, half, "half"), pair.quantized
        if pair.quantize is not None and (above := _half_above(pair.quantize)) is not None:
            quantized = insert_quantize(pair.quantize, pair, _with_layout(pair.quantize, *above), scale)
        elif pair.quantize is not None and not _is_exact(pair):
            rounded = new_scale(pair, half.astype(np.float32), "rounded")
            value = pair.quantize.inputs[0]
            quantized = quantized if value is None else insert_quantize(pair.quantize, pair, value, rounded)
        return insert_dequantize(pair.dequantize, pair, quantized, scale, like=None)

    def _fold_before(self, quantize: ir.Node) -> None:
        """Let a QuantizeLinear read the float16 value that a Cast converts to float32 for it."""
        above, where = _half_above(quantize), origin_of(quantize.outputs[0]).name
        if above is None:
            if source := _other_cast(quantize):
                self._declined.append(Site(where, f"the Cast before QuantizeLinear is kept: it is from {source}"))
            return
        consumers = [node for node, _ in quantize.outputs[0].uses() if is_dequantize(node)]
        pair = pair_of(consumers[0]) if consumers else "no DequantizeLinear reads its output"
        why = pair if isinstance(pair, str) else self._why_not(pair)
        if not why and not isinstance(pair, str) and not _is_exact(pair):
            why = "float16 would round the scale that its float32 consumers use"
        if isinstance(pair, str) or why:
            self._declined.append(Site(where, f"the Cast before QuantizeLinear is kept: {why}"))
            return
        scale = new_scale(pair, pair.scale.astype(np.float16), "half")
        edit.replace_value(quantize.outputs[0], insert_quantize(quantize, pair, _with_layout(quantize, *above), scale))
        edit.remove_dead(self._graph, [quantize])
        self._changed.append(Site(where, "Cast folded into QuantizeLinear, whose scale is now float16"))

    def _why_not(self, pair: QdqPair) -> str:
        if self._opset < HALF_SCALES_OPSET:
            return f"opset {self._opset} does not support float16 scales, which need opset {HALF_SCALES_OPSET}"
        return why_not_float16(pair.scale)


def _is_exact(pair: QdqPair) -> bool:
    return bool((pair.scale.astype(np.float16).astype(np.float32) == pair.scale).all())


def _casts_after(value: ir.Value, path: _Path = ()) -> Iterator[tuple[_Path, ir.Node]]:
    """The Casts to float16 that consume a float32 value, directly or after reshapes and transposes, and those nodes."""
    for node, index in list(value.uses()) if value.dtype is _FLOAT else ():
        if is_op(node, "Cast") and attribute(node, "to", 0) == _HALF:
            yield path, node
        elif index == 0 and is_op(node, *LAYOUT_OPS):
            yield from _casts_after(node.outputs[0], (*path, node))


def _half_above(quantize: ir.Node) -> tuple[ir.Value, _Path] | None:
    """The float16 value that is cast for a QuantizeLinear, and the reshapes and transposes between the two."""
    value = quantize.inputs[0]
    path: _Path = ()
    while value is not None and (node := value.producer()) is not None:
        source = node.inputs[0] if node.inputs else None
        if is_op(node, "Cast"):
            return (source, path) if source is not None and source.dtype is _HALF and value.dtype is _FLOAT else None
        if not is_op(node, *LAYOUT_OPS):
            return None
        value, path = source, (node, *path)
    return None


def _other_cast(quantize: ir.Node) -> str:
    """The dtype from which a Cast directly before a QuantizeLinear converts to float32; empty without a Cast."""
    value = quantize.inputs[0]
    node = value.producer() if value is not None and value.dtype is _FLOAT else None
    source = node.inputs[0] if node is not None and is_op(node, "Cast") else None
    return source.dtype.name.lower() if source is not None and source.dtype is not None else ""


def _with_layout(before: ir.Node, value: ir.Value, path: _Path) -> ir.Value:
    """A value after copies of these reshapes and transposes, in its own dtype."""
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
