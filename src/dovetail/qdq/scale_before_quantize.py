"""Move the attention scale before the Q/DQ pair of the query: ``Q, DQ, Mul, MatMul`` -> ``Mul, Q, DQ, MatMul``.

The scale of the Q/DQ pair is multiplied by the same factor, so the quantized values do not change. A Mul or Div on the
scores is moved too. TensorRT-RTX 1.7.1.116 fuses both forms; the pass is for TensorRT (the standard SDK), which
requires the scale before the first MatMul (TensorRT documentation, "Fused Attention") and the DQ directly before it
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
from dovetail.qdq.pair import QdqPair, insert_dequantize, insert_quantize, new_scale, pair_of
from dovetail.qdq.params import is_dequantize

# Operators that may be between the scaled scores and their Softmax, and how many.
_BEFORE_SOFTMAX = ("Add", "Cast", "Reshape", "Where")
_MAX_STEPS = 6


def scale_before_quantize(model: ir.Model) -> PassRecord:
    """Move every constant scale between a Q/DQ pair and a MatMul, or between a MatMul and its Softmax."""
    return _ScaleMover(model.graph).run()


class _ScaleMover:
    """Edits one graph; the scaled copy of a Q/DQ pair is shared by all edges that need it."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._scaled_pairs: dict[tuple[ir.Node, float], ir.Value] = {}
        self._changed: list[Site] = []
        self._declined: list[Site] = []

    def run(self) -> PassRecord:
        for node in [node for node in self._graph if is_op(node, "MatMul")]:
            for index in (0, 1):
                self._operand(node, index)
        for node in [node for node in self._graph if is_op(node, "MatMul")]:
            self._scores(node)
        return PassRecord("scale_before_quantize", tuple(self._changed), tuple(self._declined))

    def _operand(self, matmul: ir.Node, index: int) -> None:
        """Move a scale between a DequantizeLinear and a MatMul."""
        path, dequantize = _above(matmul.inputs[index])
        scales = [scale for node in path if (scale := scale_at(node, ScalePlace.QUERY)) is not None]
        if dequantize is None or not scales:
            return
        where = origin_of(scales[0].node.outputs[0]).name
        operand = self._scaled(dequantize, scales, where)
        if operand is None:
            return
        scaling = {scale.node for scale in scales}
        for node in path:
            operand = operand if node in scaling else edit.insert_copy(matmul, node, [operand, *node.inputs[1:]])
        matmul.replace_input_with(index, operand)
        edit.remove_dead(self._graph, list(reversed(path)))

    def _scores(self, matmul: ir.Node) -> None:
        """Move a scale between an activation-by-activation MatMul and its Softmax."""
        scaling = edit.sole_consumer(matmul.outputs[0])
        scale = None if scaling is None else scale_at(scaling, ScalePlace.SCORES)
        path, dequantize = _above(matmul.inputs[0])
        if scale is None or dequantize is None or path or not _feeds_softmax(scale.node.outputs[0]):
            return
        result = scale.node.outputs[0]
        query = self._scaled(dequantize, [scale], origin_of(result).name)
        if query is None:
            return
        shape = shape_of(result)
        scores = edit.insert(
            scale.node, "MatMul", [query, matmul.inputs[1]], source=result, replaces=[matmul, scale.node], shape=shape
        )
        edit.replace_value(result, scores)
        edit.remove_dead(self._graph, [scale.node])

    def _scaled(self, dequantize: ir.Node, scales: list[Scale], where: str) -> ir.Value | None:
        """The output of a Q/DQ pair whose input is scaled; None where the scale cannot be moved."""
        pair = pair_of(dequantize)
        factor = _total_factor(scales)
        why = pair if isinstance(pair, str) else _why_not(pair, factor)
        if isinstance(pair, str) or factor is None or why:
            self._declined.append(Site(where, f"the scale after DequantizeLinear {dequantize.name!r} is kept: {why}"))
            return None
        if (dequantize, factor) not in self._scaled_pairs:
            self._scaled_pairs[dequantize, factor] = _scaled_pair(pair, factor, scales)
        to = "into the scale of the constant" if pair.quantize is None else "before QuantizeLinear, and into its scale"
        self._changed.append(Site(where, f"factor {factor:.7g} moved {to}"))
        return self._scaled_pairs[dequantize, factor]


def _above(value: ir.Value | None) -> tuple[list[ir.Node], ir.Node | None]:
    """The scales, reshapes and transposes between a DequantizeLinear and a MatMul, in order, and that DQ node."""
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


def _total_factor(scales: list[Scale]) -> float | None:
    factors = [scale.factor for scale in scales if scale.factor is not None]
    return float(np.prod(factors)) if len(factors) == len(scales) else None


def _why_not(pair: QdqPair, factor: float | None) -> str:
    if factor is None:
        return "it is not one constant scalar"
    if factor <= 0:
        return f"{factor:g} is not above zero, as the scale of a Q/DQ pair must be"
    scaled = pair.scale.astype(np.float64) * factor
    limits = np.finfo(pair.scale.dtype)
    if scaled.min() < float(limits.smallest_normal) or scaled.max() > float(limits.max):
        return f"the scale of the Q/DQ pair times {factor:g} is out of range for {pair.scale.dtype}"
    return ""


def _scaled_pair(pair: QdqPair, factor: float, scales: list[Scale]) -> ir.Value:
    """The output of a copy of a Q/DQ pair, with the factor before the QuantizeLinear and in its scale."""
    scaled_scale = (pair.scale.astype(np.float64) * factor).astype(pair.scale.dtype)
    scale = new_scale(pair, scaled_scale, "scaled")
    if pair.quantize is None:
        return insert_dequantize(pair.dequantize, pair, pair.quantized, scale, like=None)
    value = pair.quantize.inputs[0]
    old = next(v for v in scales[0].node.inputs if v is not None and v is not scales[0].data)
    if value is None or value.dtype is None:
        raise TypeError(f"QuantizeLinear {pair.quantize.name!r} has no input with a known dtype")
    factor_array = np.array(factor, value.dtype.numpy())
    constant = edit.add_initializer(edit.graph_of(pair.quantize), factor_array, name=f"{value.name}/factor", source=old)
    nodes = [attention_scale.node for attention_scale in scales]
    scaled = edit.insert(pair.quantize, "Mul", [value, constant], source=value, replaces=nodes, shape=shape_of(value))
    same_dtype = value.dtype is scale.dtype
    quantize_scale = scale if same_dtype else new_scale(pair, scaled_scale.astype(factor_array.dtype), "written")
    quantized = insert_quantize(pair.quantize, pair, scaled, quantize_scale)
    return insert_dequantize(pair.dequantize, pair, quantized, scale, like=None)


def _feeds_softmax(value: ir.Value) -> bool:
    node = edit.sole_consumer(value)
    for _ in range(_MAX_STEPS):
        if node is None or is_op(node, "Softmax"):
            return node is not None
        if not is_op(node, *_BEFORE_SOFTMAX) or constant_of(node.outputs[0]) is not None:
            return False
        node = edit.sole_consumer(node.outputs[0])
    return False
