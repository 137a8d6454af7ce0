"""The scale of an attention in front of the pair on its query: ``Q, DQ, Mul, MatMul`` as ``Mul, Q, DQ, MatMul``.

Multiplying what is stored multiplies the pair's scale by the same number, so that the integers stay. The same for a Mul
or Div on the scores. TensorRT-RTX 1.7.1.116 fuses either way; it is kept for classic TensorRT, which wants the scale in
front of the first product (TensorRT documentation, "Fused Attention") and DQ directly in front of it
(NVIDIA/Model-Optimizer, pull request 1289).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.attention import Scale, ScalePlace, scale_at
from dovetail.model.edit import constant_of, is_op, shape_of
from dovetail.model.layout import LAYOUT_OPS
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site
from dovetail.qdq.pair import QdqPair, insert_read, insert_store, new_scale, pair_of
from dovetail.qdq.params import is_dequantize

# What may lie between scaled scores and their softmax.
_ON_THE_WAY = ("Add", "Cast", "Reshape", "Where")
_REACH = 6


def scale_before_quantize(model: ir.Model) -> PassRecord:
    """Move every constant scale between a pair and a product, or behind a product in front of a softmax."""
    return _Mover(model.graph).run()


class _Mover:
    """Changes one graph; a scaled form of a pair is made once for all edges that want it."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[ir.Node, float], ir.Value] = {}
        self._changed: list[Site] = []
        self._declined: list[Site] = []

    def run(self) -> PassRecord:
        for node in [node for node in self._graph if is_op(node, "MatMul")]:
            for index in (0, 1):
                self._operand(node, index)
        for node in [node for node in self._graph if is_op(node, "MatMul")]:
            self._scores(node)
        return PassRecord("scale_before_quantize", tuple(self._changed), tuple(self._declined))

    def _operand(self, product: ir.Node, index: int) -> None:
        """A scale between DequantizeLinear and product."""
        path, read = _above(product.inputs[index])
        scales = [scale for node in path if (scale := scale_at(node, ScalePlace.QUERY)) is not None]
        if read is None or not scales:
            return
        where = origin_of(scales[0].node.outputs[0]).name
        new = self._scaled(read, scales, where)
        if new is None:
            return
        scaling = {scale.node for scale in scales}
        for node in path:
            new = new if node in scaling else edit.insert_copy(product, node, [new, *node.inputs[1:]])
        product.replace_input_with(index, new)
        edit.remove_dead(self._graph, list(reversed(path)))

    def _scores(self, product: ir.Node) -> None:
        """A scale between a product of two activations and its softmax."""
        scaling = edit.sole_consumer(product.outputs[0])
        scale = None if scaling is None else scale_at(scaling, ScalePlace.SCORES)
        path, read = _above(product.inputs[0])
        if scale is None or read is None or path or not _feeds_softmax(scale.node.outputs[0]):
            return
        result = scale.node.outputs[0]
        query = self._scaled(read, [scale], origin_of(result).name)
        if query is None:
            return
        shape = shape_of(result)
        scores = edit.insert(
            scale.node, "MatMul", [query, product.inputs[1]], source=result, replaces=[product, scale.node], shape=shape
        )
        edit.replace_value(result, scores)
        edit.remove_dead(self._graph, [scale.node])

    def _scaled(self, read: ir.Node, scales: list[Scale], where: str) -> ir.Value | None:
        """What a pair gives, scaled in front of it; None where that cannot be."""
        pair = pair_of(read)
        factor = _product(scales)
        why = pair if isinstance(pair, str) else _why_not(pair, factor)
        if isinstance(pair, str) or factor is None or why:
            self._declined.append(Site(where, f"the scale behind DequantizeLinear {read.name!r} stays: {why}"))
            return None
        if (read, factor) not in self._made:
            self._made[read, factor] = _again(pair, factor, scales)
        to = "into the stored constant" if pair.store is None else "in front of QuantizeLinear"
        self._changed.append(Site(where, f"scale {factor:.7g} moved {to}, whose scale is multiplied by it"))
        return self._made[read, factor]


def _above(value: ir.Value | None) -> tuple[list[ir.Node], ir.Node | None]:
    """The scales and moves between a Dequantize and a product, from the Dequantize on, and the Dequantize."""
    path: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None:
        if is_dequantize(node):
            return path, node
        scale = scale_at(node, ScalePlace.QUERY)
        if scale is None and not is_op(node, *LAYOUT_OPS):
            break
        path.insert(0, node)
        value = node.inputs[0] if scale is None else scale.data
    return [], None


def _product(scales: list[Scale]) -> float | None:
    factors = [scale.factor for scale in scales if scale.factor is not None]
    return float(np.prod(factors)) if len(factors) == len(scales) else None


def _why_not(pair: QdqPair, factor: float | None) -> str:
    if factor is None:
        return "it is not one constant number"
    if factor <= 0:
        return f"{factor:g} is not above zero, as the scale of a pair must be"
    scaled = pair.scale.astype(np.float64) * factor
    limits = np.finfo(pair.scale.dtype)
    if scaled.min() < float(limits.smallest_normal) or scaled.max() > float(limits.max):
        return f"the pair's scale times {factor:g} is out of range"
    return ""


def _again(pair: QdqPair, factor: float, scales: list[Scale]) -> ir.Value:
    product = (pair.scale.astype(np.float64) * factor).astype(pair.scale.dtype)
    scale = new_scale(pair, product, "scaled")
    if pair.store is None:
        return insert_read(pair.read, pair, pair.stored, scale, like=None)
    value = pair.store.inputs[0]
    old = next(v for v in scales[0].node.inputs if v is not None and v is not scales[0].data)
    if value is None or value.dtype is None:
        raise TypeError(f"{pair.store.name!r} reads nothing")
    number = np.array(factor, value.dtype.numpy())
    constant = edit.add_initializer(edit.graph_of(pair.store), number, name=f"{value.name}/factor", source=old)
    nodes = [one.node for one in scales]
    scaled = edit.insert(pair.store, "Mul", [value, constant], source=value, replaces=nodes, shape=shape_of(value))
    same = value.dtype is scale.dtype
    written = scale if same else new_scale(pair, product.astype(number.dtype), "written")
    return insert_read(pair.read, pair, insert_store(pair.store, pair, scaled, written), scale, like=None)


def _feeds_softmax(value: ir.Value) -> bool:
    node = edit.sole_consumer(value)
    for _ in range(_REACH):
        if node is None or is_op(node, "Softmax"):
            return node is not None
        if not is_op(node, *_ON_THE_WAY) or constant_of(node.outputs[0]) is not None:
            return False
        node = edit.sole_consumer(node.outputs[0])
    return False
