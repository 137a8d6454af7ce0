"""Attention as it stands in a graph: ``Softmax(Q K^T, scaled and masked) V``, found by structure, never by name.

Scales may sit on Q, on K, on the scores before or after the mask, or on several of them; masks may be added or
Where-ed; Cast, Dropout, Identity and reshapes may lie anywhere between. A Softmax whose input is not the product of
two activations (a gate, a classifier) or whose output multiplies a constant (a box decoder) is not attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.edit import attribute, constant_of, is_op, scalar_of, shape_of

_TRANSPARENT = ("Cast", "Dropout", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
SAME_NUMBERS = (*_TRANSPARENT, "Transpose")  # operators that hand on the numbers they read
# exp(-10 000) is zero in every float type, and scores are far from 10 000: adding this masks as replacing by it does.
MASKED = -1e4


class ScalePlace(StrEnum):
    """Which tensor of an attention a scale multiplies."""

    QUERY = "query"
    KEY = "key"
    SCORES = "scores"


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """One Mul or Div that scales; ``factor`` is None where it is not one constant number."""

    place: ScalePlace
    node: ir.Node
    data: ir.Value
    factor: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """One mask: ``value`` is added to the scores (Add), or chooses between them and ``fill`` (Where).

    For a Where, ``keep`` says which condition keeps the score.
    """

    node: ir.Node
    data: ir.Value
    value: ir.Value
    fill: ir.Value | None = None
    keep: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One attention: where each part of it stands in the graph.

    ``query``, ``key`` and ``value`` are what the two MatMuls read, without any scale that stands directly in front:
    [..., Tq, D], [..., D, Tk] and [..., Tk, Dv]. ``scales`` and ``masks`` are ordered from the inputs to the Softmax;
    ``path`` holds every node between the two MatMuls, Softmax included, in order; ``guard`` is the Where that turns
    NaN to zero; ``key_transpose`` is the Transpose nearest in front of K.
    """

    scores: ir.Node
    softmax: ir.Node
    mix: ir.Node
    query: ir.Value
    key: ir.Value
    value: ir.Value
    scales: tuple[Scale, ...]
    masks: tuple[Mask, ...]
    path: tuple[ir.Node, ...]
    guard: ir.Node | None
    key_transpose: ir.Node | None

    @property
    def operands(self) -> dict[str, tuple[ir.Node, int]]:
        """The four operands of the two products, by what they are: the node, and which input of it."""
        first, second = self.scores, self.mix
        return {"query": (first, 0), "key": (first, 1), "softmax output": (second, 0), "value": (second, 1)}

    @property
    def scale(self) -> float | None:
        """The product of all scales; None where one of them is not a constant number."""
        product = 1.0
        for scale in self.scales:
            if scale.factor is None:
                return None
            product *= scale.factor
        return product

    @property
    def head_dim(self) -> int | None:
        """The length of one query vector, where it is known."""
        shape = shape_of(self.query)
        return shape[-1] if shape else None

    @property
    def heads(self) -> int | None:
        """The number of heads; None where they are folded into the batch, or the shape is unknown."""
        shape = shape_of(self.query)
        return shape[-3] if shape and len(shape) >= 4 else None


def find_attention(graph: ir.Graph) -> tuple[Attention, ...]:
    """Every attention in the graph and in the graphs inside it, in graph order."""
    return tuple(each_attention(graph))


def each_attention(graph: ir.Graph) -> Iterator[Attention]:
    """The same one by one, each looked at when its turn comes: for passes, which change the graph in between."""
    for node in [node for node in graph.all_nodes() if is_op(node, "Softmax")]:
        if (found := match_attention(node)) is not None:
            yield found


def match_attention(softmax: ir.Node) -> Attention | None:
    """The attention that a Softmax belongs to, or None when it is something else."""
    probabilities = softmax.outputs[0]
    axis = attribute(softmax, "axis", -1)
    rank = None if probabilities.shape is None else len(probabilities.shape)
    if axis != -1 and axis + 1 != rank:
        return None
    above = _above(softmax.inputs[0])
    below = _below(probabilities)
    if above is None or below is None or not _over_keys(softmax, above.scores):
        return None
    mix = below.nodes[-1]
    query_scales, query, _ = _operand(above.scores.inputs[0], ScalePlace.QUERY)
    key_scales, key, key_transpose = _operand(above.scores.inputs[1], ScalePlace.KEY)
    if query is None or key is None or mix.inputs[1] is None:
        return None
    return Attention(
        scores=above.scores,
        softmax=softmax,
        mix=mix,
        query=query,
        key=key,
        value=mix.inputs[1],
        scales=(*query_scales, *key_scales, *above.scales),
        masks=above.masks,
        path=(*above.nodes, softmax, *below.nodes[:-1]),
        guard=below.guard,
        key_transpose=key_transpose,
    )


def _over_keys(softmax: ir.Node, scores: ir.Node) -> bool:
    """Whether the last axis is still that of the keys, whatever reshapes lie between."""
    normalized, product = shape_of(softmax.inputs[0]), shape_of(scores.outputs[0])
    return normalized is None or product is None or normalized[-1] == product[-1]


@dataclass(frozen=True, slots=True)
class _Above:
    """From the scores MatMul down to (not including) the Softmax."""

    scores: ir.Node
    nodes: tuple[ir.Node, ...] = ()
    scales: tuple[Scale, ...] = ()
    masks: tuple[Mask, ...] = ()

    def then(self, node: ir.Node, *, scale: Scale | None = None, mask: Mask | None = None) -> _Above:
        return _Above(
            self.scores,
            (*self.nodes, node),
            self.scales if scale is None else (*self.scales, scale),
            self.masks if mask is None else (*self.masks, mask),
        )


def _above(value: ir.Value | None) -> _Above | None:
    node = None if value is None else value.producer()
    if node is None:
        return None
    if is_op(node, "MatMul"):
        # Keys come from the image; a constant here is the weight of a linear layer. A learned query is fine.
        return _Above(node) if constant_of(node.inputs[1]) is None else None
    if is_op(node, *_TRANSPARENT):
        above = _above(node.inputs[0])
        return above and above.then(node)
    scale = scale_at(node, ScalePlace.SCORES)
    if scale is not None and (above := _above(scale.data)) is not None:
        return above.then(node, scale=scale)
    for mask in _masks_at(node):
        if (above := _above(mask.data)) is not None:
            return above.then(node, mask=mask)
    return None


def scale_at(node: ir.Node, place: ScalePlace) -> Scale | None:
    """The scale that a Mul or Div applies: by one constant number, or by a constant per head."""
    if not is_op(node, "Mul", "Div"):
        return None
    left, right = node.inputs
    if left is None or right is None:
        return None
    factor = constant_of(right)
    data = left
    if factor is None and node.op_type == "Mul":
        factor, data = constant_of(left), right
    if factor is None or any(size != 1 for size in factor.shape[-2:]) or _adds_axes(factor, data):
        return None
    if factor.size != 1:
        return Scale(place, node, data, None)
    number = float(factor.reshape(-1)[0])
    if node.op_type == "Div":
        number = 1.0 / number if number else float("nan")
    return Scale(place, node, data, number if np.isfinite(number) else None)


def _adds_axes(factor: Array, data: ir.Value) -> bool:
    """Whether a product with these numbers has a higher rank than what is multiplied."""
    return data.shape is not None and factor.ndim > len(data.shape)


def _masks_at(node: ir.Node) -> tuple[Mask, ...]:
    """The ways to read a node as a mask: an Add has two, of which one leads to the scores."""
    if is_op(node, "Add"):
        left, right = node.inputs
        if left is not None and right is not None:
            return (Mask(node, left, right), Mask(node, right, left))
    if is_op(node, "Where"):
        condition, when_true, when_false = node.inputs
        if condition is not None and when_true is not None and when_false is not None:
            kept = Mask(node, when_true, condition, fill=when_false, keep=True)
            dropped = Mask(node, when_false, condition, fill=when_true, keep=False)
            return tuple(mask for mask in (kept, dropped) if scalar_of(mask.fill) is not None)
    return ()


@dataclass(frozen=True, slots=True)
class _Below:
    """From (not including) the Softmax down to the MatMul with V, which is the last node."""

    nodes: tuple[ir.Node, ...]
    guard: ir.Node | None = None


def _below(value: ir.Value) -> _Below | None:
    for node, index in value.uses():
        if is_op(node, "MatMul") and index == 0 and constant_of(node.inputs[1]) is None:
            return _Below((node,))
        is_guard = is_op(node, "Where") and index == 2 and _guards(node, value)
        if is_guard or (index == 0 and is_op(node, *_TRANSPARENT)):
            below = _below(node.outputs[0])
            if below is not None:
                return _Below((node, *below.nodes), node if is_guard else below.guard)
    return None


def _guards(where: ir.Node, probabilities: ir.Value) -> bool:
    """Whether a Where puts zeros where the probabilities are NaN."""
    condition = where.inputs[0]
    test = None if condition is None else condition.producer()
    return (
        test is not None
        and is_op(test, "IsNaN")
        and test.inputs[0] is probabilities
        and scalar_of(where.inputs[1]) == 0.0
    )


def _operand(value: ir.Value | None, place: ScalePlace) -> tuple[tuple[Scale, ...], ir.Value | None, ir.Node | None]:
    """The scales in front of a MatMul operand, the operand without those that stand directly there, its Transpose.

    Scales are looked for through layout nodes: `(x W) * s -> Reshape -> Transpose -> MatMul` scales Q as well.
    """
    scales: list[Scale] = []
    bare, transpose = value, None
    while value is not None and (node := value.producer()) is not None:
        scale = scale_at(node, place)
        if scale is not None:
            scales.insert(0, scale)
            bare = scale.data if bare is value else bare
            value = scale.data
        elif is_op(node, *SAME_NUMBERS):
            transpose = node if transpose is None and is_op(node, "Transpose") else transpose
            value = node.inputs[0]
        else:
            break
    return tuple(scales), bare, transpose
