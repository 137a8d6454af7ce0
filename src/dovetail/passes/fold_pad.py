"""Move the zeros of a Pad into the convolution or pooling operator that reads them, which pads by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model import edit
from dovetail.model.edit import attribute, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.padding import padding_of
from dovetail.pass_record import PassRecord, Site

_NEVER_NEGATIVE = ("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus")


def fold_pad(model: ir.Model, applies: Callable[[ir.Node], bool] = lambda node: True) -> PassRecord:
    """Let every Conv, AveragePool and MaxPool that reads a zero-padded tensor read the tensor and pad it by itself.

    Other consumers of the Pad still read it. ``applies``: which Pads to fold.
    """
    changed: list[Site] = []
    declined: list[Site] = []
    for node in list(model.graph):
        if not is_op(node, "Pad") or attribute(node, "mode", "constant") != "constant" or not applies(node):
            continue
        where = origin_of(node.outputs[0]).name
        for consumer, index in node.outputs[0].uses():
            if index != 0 or not is_op(consumer, "Conv", "AveragePool", "MaxPool"):
                continue
            reason = _obstacle(node, consumer)
            if reason:
                declined.append(Site(where, f"{consumer.op_type} {consumer.name!r}: {reason}"))
                continue
            _fold(node, consumer)
            changed.append(Site(where, f"Pad folded into {consumer.op_type} {consumer.name!r}"))
        edit.remove_dead(model.graph, [node])
    return PassRecord("fold_pad", tuple(changed), tuple(declined))


def _obstacle(pad: ir.Node, consumer: ir.Node) -> str:
    """Why the padding cannot be moved; empty if the result is the same."""
    padding, shape = padding_of(pad), shape_of(pad.inputs[0])
    if padding is None or shape is None or 0 in shape:
        return "its shape, pads or value are unknown"
    if padding.value != 0 or (padding.amounts < 0).any():
        return "it does not pad with zeros, or removes elements"
    if padding.amounts[:, :2].any():
        return "it pads the batch or the channels"
    if attribute(consumer, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return "its pads follow from auto_pad"
    if is_op(consumer, "Conv"):
        return ""
    if attribute(consumer, "ceil_mode", 0) or len(consumer.outputs) > 1:
        return "ceil_mode or a second output"
    if not (_total(pad, consumer) < np.array(attribute(consumer, "kernel_shape", ()))).all():
        return "a window would be in the padding as a whole"
    own = np.array(attribute(consumer, "pads", ()))
    if is_op(consumer, "AveragePool"):
        uncounted = own.any() and not attribute(consumer, "count_include_pad", 0)
        return "it does not count its own padding" if uncounted else ""
    source = pad.inputs[0]
    never_negative = source is not None and is_op(source.producer(), *_NEVER_NEGATIVE)
    return "" if never_negative else "a MaxPool pads with the lowest value, and the tensor may be negative"


def _total(pad: ir.Node, consumer: ir.Node) -> Array:
    """The pads of the Pad and of its consumer together: begin and end, per spatial axis."""
    padding = padding_of(pad)
    if padding is None:
        raise ValueError(f"the pads of {pad.name!r} are not constant")
    spatial = padding.amounts[:, 2:]
    own = np.array(attribute(consumer, "pads", ()) or [0] * spatial.size).reshape(2, -1)
    total: Array = spatial + own
    return total


def _fold(pad: ir.Node, consumer: ir.Node) -> None:
    output = consumer.outputs[0]
    attributes = {name: attr for name, attr in consumer.attributes.items() if name != "auto_pad"}
    attributes["pads"] = ir.AttrInt64s("pads", _total(pad, consumer).reshape(-1).tolist())
    if is_op(consumer, "AveragePool"):
        attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
    padded = edit.insert(
        consumer,
        consumer.op_type,
        [pad.inputs[0], *consumer.inputs[1:]],
        attributes=attributes,
        source=output,
        replaces=[pad, consumer],
        shape=shape_of(output),
    )
    edit.replace_value(output, padded)
    edit.remove_dead(edit.graph_of(consumer), [consumer])
