"""Find attention in a graph, ``Softmax(Q K^T, scaled and masked) V``, by structure and never by name.

Scales may be on Q, on K, on the scores before or after the mask, or on several of them; masks may be applied by Add or
by Where; Cast, Dropout, Identity and reshapes may be anywhere in between. A Softmax whose input is not a MatMul of two
activations (a gate, a classifier) or whose output is multiplied by a constant (a box decoder) is not attention.
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
VALUE_PRESERVING_OPS = (*_TRANSPARENT, "Transpose")  # their output has the values of their first input
# exp(-10 000) is zero in every float type, and scores are far smaller than 10 000: adding this is as good as replacing.
MASKED = -1e4


class ScalePlace(StrEnum):
    """Which tensor of an attention block a scale multiplies."""

    QUERY = "query"
    KEY = "key"
    SCORES = "scores"


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """A Mul or Div that scales; ``factor`` is None unless it is one constant number."""

    place: ScalePlace
    node: ir.Node
    data: ir.Value
    factor: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """A mask: ``value`` is added to the scores (Add), or is the condition that selects them or ``fill`` (Where).

    For a Where, ``keep`` is the value of the condition that keeps the score.
    """

    node: ir.Node
    data: ir.Value
    value: ir.Value
    fill: ir.Value | None = None
    keep: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """The nodes and tensors of one attention block.

    ``query``, ``key`` and ``value`` are the operands of the two MatMuls, before any scale directly before them:
    [..., Tq, D], [..., D, Tk] and [..., Tk, Dv]. ``scales`` and ``masks`` are ordered from the inputs to the Softmax;
    ``path`` holds every node between the two MatMuls, Softmax included, in order; ``guard`` is the Where that replaces
    NaN by zero; ``key_transpose`` is the last Transpose before K.
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
        """The four operands of the two MatMuls, by role: the MatMul and the index of its input."""
        first, second = self.scores, self.mix
        return {"query": (first, 0), "key": (first, 1), "softmax output": (second, 0), "value": (second, 1)}

    @property
    def scale(self) -> float | None:
        """The product of all scales, or None if one of them is not one constant number."""
        product = 1.0
        for scale in self.scales:
            if scale.factor is None:
                return None
            product *= scale.factor
        return product

    @property
    def head_dim(self) -> int | None:
        """The length of one query vector, or None if the shape is unknown."""
        shape = shape_of(self.query)
        return shape[-1] if shape else None

    @property
    def heads(self) -> int | None:
        """The number of heads, or None if they are merged into the batch or the shape is unknown."""
        shape = shape_of(self.query)
        return shape[-3] if shape and len(shape) >= 4 else None


def find_attention(graph: ir.Graph) -> tuple[Attention, ...]:
    """Every attention block in the graph and its subgraphs, in graph order."""
    return tuple(each_attention(graph))


def each_attention(graph: ir.Graph) -> Iterator[Attention]:
    """Yield every attention block, matched only when it is reached: for passes, which change the graph in between."""
    for node in [node for node in graph.all_nodes() if is_op(node, "Softmax")]:
        if (attention := match_attention(node)) is not None:
            yield attention


def match_attention(softmax: ir.Node) -> Attention | None:
    """The attention block that a Softmax belongs to, or None if it belongs to none."""
    probabilities = softmax.outputs[0]
    axis = attribute(softmax, "axis", -1)
    rank = None if probabilities.shape is None else len(probabilities.shape)
    if axis != -1 and axis + 1 != rank:
        return None
    before = _trace_scores(softmax.inputs[0])
    after = _trace_probabilities(probabilities)
    if before is None or after is None or not _over_keys(softmax, before.scores):
        return None
    mix = after.nodes[-1]
    query_scales, query, _ = _trace_operand(before.scores.inputs[0], ScalePlace.QUERY)
    key_scales, key, key_transpose = _trace_operand(before.scores.inputs[1], ScalePlace.KEY)
    if query is None or key is None or mix.inputs[1] is None:
        return None
    return Attention(
        scores=before.scores,
        softmax=softmax,
        mix=mix,
        query=query,
        key=key,
        value=mix.inputs[1],
        scales=(*query_scales, *key_scales, *before.scales),
        masks=before.masks,
        path=(*before.nodes, softmax, *after.nodes[:-1]),
        guard=after.guard,
        key_transpose=key_transpose,
    )


def _over_keys(softmax: ir.Node, scores: ir.Node) -> bool:
    """Whether the last axis of the Softmax is still the key axis, after any reshapes in between."""
    softmax_shape, scores_shape = shape_of(softmax.inputs[0]), shape_of(scores.outputs[0])
    return softmax_shape is None or scores_shape is None or softmax_shape[-1] == scores_shape[-1]


@dataclass(frozen=True, slots=True)
class _ScorePath:
    """The nodes from the scores MatMul to the Softmax, without these two."""

    scores: ir.Node
    nodes: tuple[ir.Node, ...] = ()
    scales: tuple[Scale, ...] = ()
    masks: tuple[Mask, ...] = ()

    def then(self, node: ir.Node, *, scale: Scale | None = None, mask: Mask | None = None) -> _ScorePath:
        return _ScorePath(
            self.scores,
            (*self.nodes, node),
            self.scales if scale is None else (*self.scales, scale),
            self.masks if mask is None else (*self.masks, mask),
        )


def _trace_scores(value: ir.Value | None) -> _ScorePath | None:
    """The path back from the Softmax input to the scores MatMul, or None if there is none."""
    node = None if value is None else value.producer()
    if node is None:
        return None
    if is_op(node, "MatMul"):
        # Keys are activations; a constant here is the weight of a linear layer. A learned (constant) query is fine.
        return _ScorePath(node) if constant_of(node.inputs[1]) is None else None
    if is_op(node, *_TRANSPARENT):
        path = _trace_scores(node.inputs[0])
        return path and path.then(node)
    scale = scale_at(node, ScalePlace.SCORES)
    if scale is not None and (path := _trace_scores(scale.data)) is not None:
        return path.then(node, scale=scale)
    for mask in _masks_at(node):
        if (path := _trace_scores(mask.data)) is not None:
            return path.then(node, mask=mask)
    return None


def scale_at(node: ir.Node, place: ScalePlace) -> Scale | None:
    """The scale that a Mul or Div applies, by one constant or by one constant per head; None for any other node."""
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
    scale = float(factor.reshape(-1)[0])
    if node.op_type == "Div":
        scale = 1.0 / scale if scale else float("nan")
    return Scale(place, node, data, scale if np.isfinite(scale) else None)


def _adds_axes(factor: Array, data: ir.Value) -> bool:
    """Whether multiplying by the factor would raise the rank of the data."""
    return data.shape is not None and factor.ndim > len(data.shape)


def _masks_at(node: ir.Node) -> tuple[Mask, ...]:
    """The possible readings of a node as a mask: either input of an Add may be the scores."""
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
class _ProbabilityPath:
    """The nodes after the Softmax, up to and including the MatMul with V."""

    nodes: tuple[ir.Node, ...]
    guard: ir.Node | None = None


def _trace_probabilities(value: ir.Value) -> _ProbabilityPath | None:
    """The path from the Softmax output to the MatMul with V, or None if there is none."""
    for node, index in value.uses():
        if is_op(node, "MatMul") and index == 0 and constant_of(node.inputs[1]) is None:
            return _ProbabilityPath((node,))
        is_guard = is_op(node, "Where") and index == 2 and _guards(node, value)
        if is_guard or (index == 0 and is_op(node, *_TRANSPARENT)):
            path = _trace_probabilities(node.outputs[0])
            if path is not None:
                return _ProbabilityPath((node, *path.nodes), node if is_guard else path.guard)
    return None


def _guards(where: ir.Node, probabilities: ir.Value) -> bool:
    """Whether a Where replaces NaN probabilities by zero."""
    condition = where.inputs[0]
    test = None if condition is None else condition.producer()
    return (
        test is not None
        and is_op(test, "IsNaN")
        and test.inputs[0] is probabilities
        and scalar_of(where.inputs[1]) == 0.0
    )


def _trace_operand(
    value: ir.Value | None, place: ScalePlace
) -> tuple[tuple[Scale, ...], ir.Value | None, ir.Node | None]:
    """The scales on a MatMul operand, the operand before the scales directly before the MatMul, its Transpose.

    Scales are also found after reshapes and transposes:
    `(x W) * s -> Reshape -> Transpose -> MatMul` scales Q as well.
    """
    scales: list[Scale] = []
    bare, transpose = value, None
    while value is not None and (node := value.producer()) is not None:
        scale = scale_at(node, place)
        if scale is not None:
            scales.insert(0, scale)
            bare = scale.data if bare is value else bare
            value = scale.data
        elif is_op(node, *VALUE_PRESERVING_OPS):
            transpose = node if transpose is None and is_op(node, "Transpose") else transpose
            value = node.inputs[0]
        else:
            break
    return tuple(scales), bare, transpose
