"""Replace a linear layer that a Split follows by one layer per output of the Split: Q, K and V of a fused projection.

XNNPACK (executorch 1.5.1) copies every part out of the fused output; separate layers write each part directly.
TensorRT-RTX 1.7.1 does not compute a fused layer with per-channel scales in 8 bit, and fuses separate layers on the
same tensor by itself. Each part also gets a range of its own.
"""

from __future__ import annotations

import itertools

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of, sole_consumer
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site


def split_fused_linear(model: ir.Model) -> PassRecord:
    """Split the weight instead of the output, where a Split of the last axis is the only consumer of a linear layer."""
    changed: list[Site] = []
    declined: list[Site] = []
    for split in list(model.graph):
        if not is_op(split, "Split"):
            continue
        where = origin_of(split.outputs[0]).name
        layer = _layer(split)
        if isinstance(layer, str):
            declined.append(Site(where, layer))
            continue
        _split_weight(model.graph, *layer, split)
        changed.append(Site(where, f"linear layer split into {len(split.outputs)}"))
    return PassRecord("split_fused_linear", tuple(changed), tuple(declined))


def _layer(split: ir.Node) -> tuple[ir.Node, ir.Node | None] | str:
    """The linear layer before a Split and its bias Add, or why there is none.

    One Reshape that keeps the last axis may be in between.
    """
    value = split.inputs[0]
    shape = shape_of(value)
    if value is None or shape is None or int(attribute(split, "axis", 0)) % len(shape) != len(shape) - 1:
        return "it does not split the last axis"
    if any(shape_of(part) is None for part in split.outputs):
        return "the sizes of its outputs are unknown"
    chain = [split]
    producer = value.producer()
    if producer is not None and is_op(producer, "Reshape") and (shape_of(producer.inputs[0]) or (0,))[-1] == shape[-1]:
        chain.append(producer)
        producer = _producer_of(producer.inputs[0])
    bias = producer if is_op(producer, "Add") else None
    if bias is not None:
        chain.append(bias)
        if [shape_of(v) for v in bias.inputs if constant_of(v) is not None] != [shape[-1:]]:
            return "the added operand is not one constant per output"
        producer = _producer_of(next(v for v in bias.inputs if constant_of(v) is None))
    if producer is None or not _is_linear(producer):
        return "its input does not come from a linear layer"
    nodes = [producer, *reversed(chain)]
    if any(sole_consumer(node.outputs[0]) is not following for node, following in itertools.pairwise(nodes)):
        return "the unsplit output is used elsewhere too"
    return producer, bias


def _producer_of(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _is_linear(node: ir.Node) -> bool:
    if not is_op(node, "Gemm", "MatMul") or len(shape_of(node.inputs[1]) or ()) != 2:
        return False
    bias = shape_of(node.inputs[2]) if len(node.inputs) > 2 else None
    return all(constant_of(v) is not None for v in node.inputs[1:] if v is not None) and (
        bias is None or len(bias) == 1
    )


def _split_weight(graph: ir.Graph, linear: ir.Node, bias: ir.Node | None, split: ir.Node) -> None:
    full_shape, rows = shape_of(linear.outputs[0]) or (), bool(attribute(linear, "transB", 0))
    ends = list(itertools.accumulate((shape_of(part) or ())[-1] for part in split.outputs))
    replaced = [node for node in (linear, bias) if node is not None]
    for start, end, part in zip([0, *ends], ends, list(split.outputs), strict=False):
        inputs: list[ir.Value | None] = [linear.inputs[0]]
        inputs += [
            _piece(graph, value, start, end, rows=rows and index == 0) for index, value in enumerate(linear.inputs[1:])
        ]
        shape = (*full_shape[:-1], end - start)
        layer = edit.insert(
            split,
            linear.op_type,
            inputs,
            attributes=dict(linear.attributes),
            source=part,
            replaces=replaced,
            shape=shape,
        )
        if bias is not None:
            full_bias = next(v for v in bias.inputs if constant_of(v) is not None)
            part_bias = _piece(graph, full_bias, start, end, rows=False)
            layer = edit.insert(split, "Add", [layer, part_bias], source=part, replaces=replaced, shape=shape)
        part_shape = shape_of(part) or ()
        if shape != part_shape:
            layer = insert_step(split, layer, Step("Reshape", part_shape), replaces=[])
        edit.replace_value(part, layer)
    edit.remove_dead(graph, [split])


def _piece(graph: ir.Graph, value: ir.Value | None, start: int, end: int, *, rows: bool) -> ir.Value | None:
    """The part of a constant for the outputs from ``start`` to ``end``: of its rows, or of its last axis."""
    array = constant_of(value)
    if value is None or array is None:
        return None
    piece = array[start:end] if rows else array[..., start:end]
    return edit.add_initializer(graph, piece, name=f"{value.name}/{start}", source=value)
