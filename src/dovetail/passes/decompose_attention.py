"""Decompose the ``Attention`` operator (opset 23) into MatMul, Softmax and MatMul.

No target runs it quantized: TensorRT does not lower QDQ before it, and the precision of the scores and of the
probabilities could not be planned, because they are not tensors of the graph.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.attention import MASKED
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def decompose_attention(model: ir.Model) -> PassRecord:
    """Replace Attention nodes without a cache or softcap by their definition, with one scale on Q and added masks."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph.all_nodes()):
        if not edit.is_op(node, "Attention"):
            continue
        where = origin_of(node.outputs[0]).name
        reason = _why_not(node)
        if reason is not None:
            declined.append(Site(where, reason))
            continue
        _decompose(node)
        changed.append(Site(where, "Attention decomposed into MatMul, Softmax and MatMul"))
    return PassRecord("decompose_attention", tuple(changed), tuple(declined))


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _heads(node: ir.Node, name: str, value: ir.Value | None) -> int:
    shape = edit.shape_of(value) or ()
    return shape[1] if len(shape) == 4 else int(edit.attribute(node, name, 0))


def _why_not(node: ir.Node) -> str | None:
    query, key, value, mask = (_input(node, index) for index in range(4))
    if any(edit.shape_of(operand) is None for operand in (query, key, value)):
        return "the shape of Q, K or V is unknown"
    if len({len(edit.shape_of(operand) or ()) for operand in (query, key, value)}) > 1:
        return "the ranks of Q, K and V differ"
    if _heads(node, "q_num_heads", query) < 1:
        return "it has no number of heads"
    if any(_input(node, index) is not None for index in (4, 5)):
        return "it uses a cache of past keys and values"
    if _input(node, 6) is not None:
        return "it uses the lengths of padded keys and values"
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return "its other outputs (keys, values or scores) are used"
    if edit.attribute(node, "softcap", 0.0):
        return "it caps the scores (softcap)"
    if _heads(node, "q_num_heads", query) != _heads(node, "kv_num_heads", key):
        return "query heads share key heads (grouped-query attention)"
    precision = edit.attribute(node, "softmax_precision", None)
    if query is None or query.dtype is None or precision not in (None, query.dtype.value):
        return f"its softmax is computed in another type ({precision})"
    return None if mask is None else _why_not_mask(mask, query.dtype, (edit.shape_of(key) or (0, 0))[-2])


def _why_not_mask(mask: ir.Value, dtype: ir.DataType, keys: int) -> str | None:
    shape = edit.shape_of(mask)
    if not shape or shape[-1] not in (1, keys):
        return "the mask does not cover all keys"
    return None if mask.dtype in (ir.DataType.BOOL, dtype) else f"the mask is {mask.dtype}, but the query is {dtype}"


def _decompose(node: ir.Node) -> None:
    output = node.outputs[0]
    query, key, value = (
        _split_heads(node, _input(node, index), name)
        for index, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads"))
    )
    batch, heads, tokens, head_dim = edit.shape_of(query) or (0, 0, 0, 1)
    keys, channels = (edit.shape_of(value) or (0, 0))[-2:]
    scale = edit.attribute(node, "scale", None)
    factor = _constant(node, np.array(head_dim**-0.5 if scale is None else scale), "scale")
    scaled = edit.insert(node, "Mul", [query, factor], source=query, replaces=[node], shape=edit.shape_of(query))
    key = insert_step(node, key, Step("Transpose", (0, 1, 3, 2)), replaces=[node])
    shape = (batch, heads, tokens, keys)
    scores = edit.insert(node, "MatMul", [scaled, key], source=output, replaces=[node], shape=shape)
    masks, row_factor = _masking(node, tokens, keys)
    for mask in masks:
        scores = edit.insert(node, "Add", [scores, mask], source=output, replaces=[node], shape=shape)
    probabilities = edit.insert(
        node, "Softmax", [scores], attributes={"axis": -1}, source=output, replaces=[node], shape=shape
    )
    shape = (batch, heads, tokens, channels)
    mixed = edit.insert(node, "MatMul", [probabilities, value], source=output, replaces=[node], shape=shape)
    if row_factor is not None:
        mixed = edit.insert(node, "Mul", [mixed, row_factor], source=output, replaces=[node], shape=shape)
    if len(edit.shape_of(_input(node, 0)) or ()) == 3:
        mixed = insert_step(node, mixed, Step("Transpose", (0, 2, 1, 3)), replaces=[node])
        mixed = insert_step(node, mixed, Step("Reshape", (batch, tokens, heads * channels)), replaces=[node])
    edit.replace_value(output, mixed)
    edit.remove_dead(edit.graph_of(node), [node])


def _split_heads(node: ir.Node, value: ir.Value | None, heads_name: str) -> ir.Value:
    """[B,T,H*D] -> [B,H,T,D]; a tensor of rank 4 already has that shape."""
    shape = edit.shape_of(value)
    if value is None or shape is None:
        raise ValueError(f"an input of node {node.name!r} is missing")
    if len(shape) == 4:
        return value
    heads = _heads(node, heads_name, value)
    split = insert_step(node, value, Step("Reshape", (*shape[:2], heads, shape[2] // heads)), replaces=[node])
    return insert_step(node, split, Step("Transpose", (0, 2, 1, 3)), replaces=[node])


def _masking(node: ir.Node, tokens: int, keys: int) -> tuple[list[ir.Value], ir.Value | None]:
    """The masks to add to the scores, and the factor by which the rows of the result are multiplied.

    A query for which all keys are masked gives a row of zeros (ONNX 1.23), where a Softmax of a row of -inf would give
    NaN: such a row is not masked at all, and its result is multiplied by zero. The factor is None if no row is
    completely masked, and for a float mask from the inputs, which may also be a bias and is added as it is.
    """
    mask = _input(node, 3)
    causal = np.tril(np.ones((tokens, keys), np.bool_)) if edit.attribute(node, "is_causal", 0) else None
    if mask is None:
        return [] if causal is None else [_constant(node, _additive(causal), "mask")], None
    if (array := edit.constant_of(mask)) is not None:
        return _constant_masking(node, mask, array, causal)
    if mask.dtype == ir.DataType.BOOL:
        return _input_masking(node, mask, causal)
    return [mask] if causal is None else [mask, _constant(node, _additive(causal), "mask")], None


def _constant_masking(
    node: ir.Node, mask: ir.Value, array: Array, causal: Array | None
) -> tuple[list[ir.Value], ir.Value | None]:
    additive = _additive(array) if array.dtype == np.bool_ else array
    if causal is not None:
        additive = np.where(causal, additive, -np.inf)
    # ONNX Runtime treats the lowest value of a type as -inf here.
    has_keys: Array = np.any(additive > _dtype(node).min, axis=-1, keepdims=True)
    if has_keys.all():
        return [mask if additive is array else _constant(node, additive, "mask", source=mask)], None
    added = _constant(node, np.where(has_keys, additive, 0.0), "mask", source=mask)
    return [added], _constant(node, has_keys, "seen", source=mask)


def _input_masking(node: ir.Node, mask: ir.Value, causal: Array | None) -> tuple[list[ir.Value], ir.Value | None]:
    """The masks and the factor of a condition from the inputs; finite, because any row may be completely masked."""
    graph, shape = edit.graph_of(node), edit.shape_of(mask) or ()
    if causal is not None:
        triangle = edit.add_initializer(graph, causal, name=f"{node.outputs[0].name}/causal", source=mask)
        shape = np.broadcast_shapes(shape, causal.shape)
        mask = edit.insert(node, "And", [mask, triangle], source=mask, replaces=[node], shape=shape)
    kept, dropped = (_constant(node, np.array(value), "mask", source=mask) for value in (0.0, MASKED))
    dtype = _dtype(node)
    added = edit.insert(node, "Where", [mask, kept, dropped], source=mask, replaces=[node], shape=shape, dtype=dtype)
    as_float = edit.insert(
        node, "Cast", [mask], attributes={"to": int(dtype)}, source=mask, replaces=[node], shape=shape, dtype=dtype
    )
    axes = edit.add_initializer(graph, np.array([-1]), name=f"{mask.name}/axes", source=mask)
    has_keys = edit.insert(
        node, "ReduceMax", [as_float, axes], source=mask, replaces=[node], shape=(*shape[:-1], 1), dtype=dtype
    )
    return [added], has_keys


def _additive(keep: Array) -> Array:
    return np.where(keep, 0.0, -np.inf)


def _dtype(node: ir.Node) -> ir.DataType:
    query = _input(node, 0)
    if query is None or query.dtype is None:
        raise ValueError(f"{node.name!r} has no typed query")
    return query.dtype


def _constant(node: ir.Node, array: Array, name: str, source: ir.Value | None = None) -> ir.Value:
    output = node.outputs[0]
    typed = array.astype(_dtype(node).numpy())
    return edit.add_initializer(edit.graph_of(node), typed, name=f"{output.name}/{name}", source=source or output)
