"""Elements of a tensor that are zero whatever the inputs of the model are: padding, and what is computed from it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import attribute, constant_of, is_float, is_op, shape_of
from dovetail.model.evaluate import EvaluationError, evaluate

Live = dict[ir.Value, Array]
_MOVES = (*DATA_MOVEMENT_OPS, "Concat")
# Operators with one input that give zero for zero.
_ZERO_FOR_ZERO = (
    *("Abs", "Elu", "Erf", "Gelu", "HardSwish", "LeakyRelu", "LpNormalization", "Neg", "Relu", "Sign", "Sin", "Sqrt"),
    "Tanh",
)


def live_elements(graph: ir.Graph) -> Live:
    """Tensor -> True where an element may be other than zero; only tensors of which some elements are always zero."""
    live: Live = {}
    for node in graph:
        found = _live_outputs(node, live, graph.opset_imports)
        for value, array in zip(node.outputs, found, strict=False):
            if array.shape == shape_of(value) and not array.all():
                live[value] = array
    return live


def _live_outputs(node: ir.Node, live: Mapping[ir.Value, Array], opsets: Mapping[str, int]) -> tuple[Array, ...]:
    """For each output, which elements may be other than zero; nothing where no element is known to be zero."""
    if not is_op(node, "Pad") and not any(value in live for value in node.inputs if value is not None):
        return ()
    inputs = [_live_input(value, live) for value in node.inputs]
    first = inputs[0] if inputs else None
    if first is None:
        return ()
    if is_op(node, "Pad", *_MOVES):
        return _moved(node, inputs, opsets)
    if is_op(node, *_ZERO_FOR_ZERO):
        return (first,)
    if is_op(node, "MatMul") or _is_layer_without_bias(node):
        shape = shape_of(node.outputs[0])
        is_layer = constant_of(node.inputs[1]) is not None and shape is not None and first.ndim == len(shape)
        return (np.broadcast_to(first.any(axis=-1, keepdims=True), shape),) if is_layer and shape is not None else ()
    second = inputs[1] if len(inputs) == 2 else None
    if second is None:
        return ()
    if is_op(node, "Mul"):
        return (first & second,)
    return (first | second,) if is_op(node, "Add", "Sub") else ()


def _is_layer_without_bias(node: ir.Node) -> bool:
    return (
        is_op(node, "Gemm") and not attribute(node, "transA", 0) and len([v for v in node.inputs if v is not None]) < 3
    )


def _live_input(value: ir.Value | None, live: Mapping[ir.Value, Array]) -> Array | None:
    if value is None:
        return None
    constant, shape = constant_of(value), shape_of(value)
    if constant is not None:
        return np.asarray(constant != 0)
    return live.get(value, None if shape is None else np.ones(shape, bool))


def _moved(node: ir.Node, inputs: list[Array | None], opsets: Mapping[str, int]) -> tuple[Array, ...]:
    """The operator applied to ones at the elements that may be other than zero, and zeros elsewhere."""
    if is_op(node, "Pad") and attribute(node, "mode", "constant") != "constant":
        return ()
    feeds: dict[str, Array] = {}
    for value, array in zip(node.inputs, inputs, strict=True):
        constant = constant_of(value)
        if value is None or array is None:
            continue
        if not is_float(value) and constant is None:  # indices and sizes that are computed
            return ()
        feeds[str(value.name)] = array.astype(np.float32) if is_float(value) or constant is None else constant
    try:
        return tuple(array != 0 for array in evaluate(node, feeds, opsets))
    except EvaluationError:
        return ()
