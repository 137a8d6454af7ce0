"""One linear layer per part of a Split behind it: Q, K and V of a fused projection.

XNNPACK (executorch 1.5.1) copies every part out of the fused result; three layers write them where they are read. Each
part also gets a range of its own.
"""

from __future__ import annotations

import itertools

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of, sole_consumer
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def split_linear(model: ir.Model) -> PassRecord:
    """Cut the weight instead of the result, where a Split of the last axis is all that reads a linear layer."""
    changed: list[Site] = []
    declined: list[Site] = []
    for split in list(model.graph):
        if not is_op(split, "Split"):
            continue
        where = origin_of(split.outputs[0]).name
        linear, reason = _layer(split)
        if linear is None:
            declined.append(Site(where, reason))
            continue
        _cut(model.graph, linear, split)
        changed.append(Site(where, f"{len(split.outputs)} layers in place of one"))
    return PassRecord("split_linear", tuple(changed), tuple(declined))


def _layer(split: ir.Node) -> tuple[ir.Node | None, str]:
    """The linear layer that a Split cuts, directly or through one Reshape that leaves the last axis alone."""
    value = split.inputs[0]
    shape = shape_of(value)
    if value is None or shape is None or int(attribute(split, "axis", 0)) % len(shape) != len(shape) - 1:
        return None, "it does not cut the last axis"
    if any(shape_of(part) is None for part in split.outputs):
        return None, "the sizes of its parts are not known"
    follower, producer = split, value.producer()
    if producer is not None and is_op(producer, "Reshape") and (shape_of(producer.inputs[0]) or (0,))[-1] == shape[-1]:
        if sole_consumer(value) is not split:
            return None, "the whole is read elsewhere too"
        follower, value = producer, producer.inputs[0]
        producer = None if value is None else value.producer()
    if producer is None or value is None or not _is_linear(producer):
        return None, "what it cuts does not come from a linear layer"
    if sole_consumer(value) is not follower:
        return None, "the whole is read elsewhere too"
    return producer, ""


def _is_linear(node: ir.Node) -> bool:
    if not is_op(node, "Gemm", "MatMul") or len(shape_of(node.inputs[1]) or ()) != 2:
        return False
    bias = shape_of(node.inputs[2]) if len(node.inputs) > 2 else None
    return all(constant_of(v) is not None for v in node.inputs[1:] if v is not None) and (
        bias is None or len(bias) == 1
    )


def _cut(graph: ir.Graph, linear: ir.Node, split: ir.Node) -> None:
    whole, rows = shape_of(linear.outputs[0]) or (), bool(attribute(linear, "transB", 0))
    ends = list(itertools.accumulate((shape_of(part) or ())[-1] for part in split.outputs))
    for start, end, part in zip([0, *ends], ends, split.outputs, strict=False):
        inputs: list[ir.Value | None] = [linear.inputs[0]]
        for index, value in enumerate(linear.inputs[1:], 1):
            array = constant_of(value)
            if value is None or array is None:
                inputs.append(None)
                continue
            piece = array[start:end] if rows and index == 1 else array[..., start:end]
            inputs.append(edit.add_initializer(graph, piece, name=f"{value.name}/{start}", source=value))
        made = edit.insert(
            split,
            linear.op_type,
            inputs,
            attributes=dict(linear.attributes),
            source=part,
            replaces=[linear],
            shape=(*whole[:-1], end - start),
        )
        shape = shape_of(part) or ()
        if shape_of(made) != shape:
            made = insert_step(split, made, Step("Reshape", shape), replaces=[])
        edit.replace_value(part, made)
    edit.remove_dead(graph, [split])
