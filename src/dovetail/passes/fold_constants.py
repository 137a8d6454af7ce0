"""Fold every chain of operators that depends only on constants."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.evaluate import RANDOM, EvaluationError, evaluate, result_types
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# A folded tensor may be this much larger than its inputs; larger ones are computed at run time.
_GROWTH_LIMIT_BYTES = 64 << 20
# How a tensor is quantized is the user's decision; folding these would lose it.
_QUANTIZATION = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
# Their result is at most as large as their input times its rank.
_SELECTING = ("NonZero", "Unique", "Compress")


def fold_constants(model: ir.Model) -> PassRecord:
    """Replace values that do not depend on the inputs by initializers, in one walk in graph order.

    The walk also infers the shapes that become known on the way, so that a Shape of any static tensor is a constant.
    Random operators, quantization operators, control flow and graph outputs are never folded; an Identity is left to
    ``remove_noops``, which copies nothing.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in model.graph:
        where = origin_of(node.outputs[0]).name
        reason = _fold(node, model.opset_imports)
        if reason == "":
            changed.append(Site(where, f"{node.op_type} folded"))
            _drop(model.graph, node)
        elif reason is not None:
            declined.append(Site(where, reason))
    return PassRecord("fold_constants", tuple(changed), tuple(declined))


def _fold(node: ir.Node, imports: dict[str, int]) -> str | None:
    """Fold one node: returns "" if folded, None if it is not constant, else why it was not folded."""
    if node.domain or node.op_type in ("Identity", *RANDOM, *_QUANTIZATION) or _has_subgraph(node):
        return None
    if node.op_type in ("Shape", "Size"):
        arrays = _static_shape(node)
    else:
        arrays_of_inputs = {value: edit.constant_of(value) for value in node.inputs if value is not None}
        constants = {str(value.name): array for value, array in arrays_of_inputs.items() if array is not None}
        if len(constants) < len(arrays_of_inputs):
            _infer(node, constants, imports)
            return None
        if any(value.is_graph_output() for value in node.outputs):
            return "a graph output is not folded"
        if node.op_type == "Constant":
            array = edit.constant_of(node.outputs[0])
            arrays = [None if array is None or array.dtype == object else array]  # strings stay in their node
        elif (reason := _why_too_large(node, constants, imports)) is not None:
            return reason
        else:
            try:
                arrays = list(evaluate(node, constants, imports))
            except EvaluationError as error:
                return str(error)
    if any(array is None for array in arrays) or any(value.is_graph_output() for value in node.outputs):
        return None
    for value, array in zip((value for value in node.outputs if value.name), arrays, strict=True):
        if array is not None:
            edit.fold(value, ir.Tensor(array, name=value.name))
    return ""


def _drop(graph: ir.Graph, node: ir.Node) -> None:
    """Remove a folded node and the constants that only it used, so that a chain holds one result at a time."""
    inputs = [value for value in node.inputs if value is not None]
    edit.remove_dead(graph, [node])
    for value in inputs:
        if value.is_initializer() and not value.uses() and not value.is_graph_output():
            graph.initializers.pop(str(value.name), None)


def _static_shape(node: ir.Node) -> list[Array | None]:
    shape = edit.shape_of(node.inputs[0])
    if shape is None:
        return [None]
    if node.op_type == "Size":
        return [np.array(math.prod(shape), dtype=np.int64)]
    bounds = slice(edit.attribute(node, "start", 0), edit.attribute(node, "end", None))
    return [np.array(shape[bounds], dtype=np.int64)]


def _infer(node: ir.Node, constants: dict[str, Array], imports: dict[str, int]) -> None:
    """Set the output shapes that whole-graph inference could not determine before this walk."""
    if all(edit.shape_of(value) is not None for value in node.outputs if value.name):
        return
    for value, inferred in zip(node.outputs, result_types(node, constants, imports), strict=True):
        if inferred is not None and value.name:
            value.type, value.shape = inferred


def _why_too_large(node: ir.Node, constants: dict[str, Array], imports: dict[str, int]) -> str | None:
    size = sum(array.nbytes for array in constants.values())
    if node.op_type in _SELECTING:
        largest = max(array.size * max(array.ndim, 1) * 8 for array in constants.values())
        return None if largest <= size + _GROWTH_LIMIT_BYTES else f"the result may be as large as {largest} bytes"
    total = 0
    for value, inferred in zip(node.outputs, result_types(node, constants, imports), strict=True):
        if not value.name:
            continue
        if inferred is None or not inferred[1].is_static():
            return "the size of the result is unknown before it is computed"
        total += math.ceil(math.prod(inferred[1].numpy()) * inferred[0].dtype.itemsize)
    return (
        None if total <= size + _GROWTH_LIMIT_BYTES else f"the result would have {total} bytes, its inputs have {size}"
    )


def _has_subgraph(node: ir.Node) -> bool:
    return any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attr in node.attributes.values())
