"""Keep ONNX Runtime from folding a Pad into a pooling operator that would then compute something else.

Its optimizer Pad_Fusion (onnxruntime 1.31.1, from its source and its results) adds the zeros of a Pad to the pads of
the MaxPool or AveragePool after it. A MaxPool pads with the lowest value, not with zeros, so the result is wrong for
negative inputs; a pooling operator whose pads are not smaller than its kernel is not loaded; and with ceil_mode a last
window that starts in the pads is dropped.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

_NEVER_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs")
# Pad_Fusion compares the bytes of the padding value with zero, and those of minus zero are not all zero.
_MINUS_ZERO = -0.0


def protect_pad_from_fusion(model: ir.Model) -> PassRecord:
    """Make a Pad of zeros that must stay before its pooling operator pad with minus zero, so that it is not folded."""
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        pool = _folded_into(node)
        if pool is None:
            continue
        output = node.outputs[0]
        where = origin_of(output).name
        reason = _why_not(node, pool)
        if reason is not None:
            declined.append(Site(where, reason))
            continue
        edit.replace_value(output, _with_minus_zero(node))
        edit.remove_dead(model.graph, [node])
        changed.append(Site(where, f"Pad kept before {pool.op_type} {pool.name!r}"))
    return PassRecord("protect_pad_from_fusion", tuple(changed), tuple(declined))


def _folded_into(node: ir.Node) -> ir.Node | None:
    """The pooling operator that ONNX Runtime folds a node into; None if it does not fold it."""
    if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "constant" or len(node.inputs) > 3:
        return None
    pads, value = constant_of(node.inputs[1]), node.inputs[2] if len(node.inputs) == 3 else None
    padding = constant_of(value)
    if pads is None or (pads < 0).any() or pads.reshape(2, -1)[:, :2].any():
        return None
    if value is not None and (padding is None or any(padding.tobytes())):
        return None
    consumer = edit.sole_consumer(node.outputs[0])
    if consumer is not None and is_op(consumer, "Cast"):
        consumer = edit.sole_consumer(consumer.outputs[0])
    if consumer is None or not is_op(consumer, "MaxPool", "AveragePool") or len(consumer.outputs) > 1:
        return None
    return consumer if attribute(consumer, "auto_pad", "NOTSET") == "NOTSET" else None


def _why_not(node: ir.Node, pool: ir.Node) -> str | None:
    source = node.inputs[0]
    if source is None or not edit.is_float(source):
        return f"it pads {'a tensor' if source is None else source.dtype}, which has no minus zero"
    if attribute(pool, "ceil_mode", 0) or not (_pads(node, pool) < np.array(attribute(pool, "kernel_shape", ()))).all():
        return None
    if is_op(pool, "AveragePool"):
        return "folding does not change the result: an AveragePool pads with zeros too"
    return (
        "folding does not change the result: the padded tensor is never negative"
        if is_op(source.producer(), *_NEVER_NEGATIVE)
        else None
    )


def _pads(node: ir.Node, pool: ir.Node) -> Array:
    """The pads that the pooling operator would have after folding: begin and end, per axis."""
    pads = constant_of(node.inputs[1])
    if pads is None:
        raise ValueError(f"the pads of {node.name!r} are not constant")
    spatial: Array = pads.reshape(2, -1)[:, 2:]
    own: Array = np.array(attribute(pool, "pads", ()) or [0] * spatial.size).reshape(2, -1)
    return np.add(spatial, own)


def _with_minus_zero(node: ir.Node) -> ir.Value:
    source, pads = node.inputs[:2]
    if source is None or source.dtype is None:
        raise ValueError(f"{node.name!r} has no typed input")
    output = node.outputs[0]
    zero = np.array(_MINUS_ZERO, source.dtype.numpy())
    value = edit.add_initializer(edit.graph_of(node), zero, name=f"{output.name}/zero", source=output)
    return edit.insert_copy(node, node, [source, pads, value])
