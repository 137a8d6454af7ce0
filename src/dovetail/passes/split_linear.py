"""One linear layer per part of a Split behind it: Q, K and V of a fused projection.

XNNPACK (executorch 1.5.1) copies every part out of the fused result; three layers write them where they are read. In
TensorRT-RTX 1.7.1 a fused layer with one scale per channel is not computed in 8 bit, while layers that read the same
tensor are put together again. Each part also gets a range of its own.
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
        found = _layer(split)
        if isinstance(found, str):
            declined.append(Site(where, found))
            continue
        _cut(model.graph, *found, split)
        changed.append(Site(where, f"{len(split.outputs)} layers in place of one"))
    return PassRecord("split_linear", tuple(changed), tuple(declined))


def _layer(split: ir.Node) -> tuple[ir.Node, ir.Node | None] | str:
    """The linear layer that a Split cuts and the bias behind it, or why there is none.

    One Reshape that leaves the last axis alone may stand in between.
    """
    value = split.inputs[0]
    shape = shape_of(value)
    if value is None or shape is None or int(attribute(split, "axis", 0)) % len(shape) != len(shape) - 1:
        return "it does not cut the last axis"
    if any(shape_of(part) is None for part in split.outputs):
        return "the sizes of its parts are not known"
    chain = [split]
    producer = value.producer()
    if producer is not None and is_op(producer, "Reshape") and (shape_of(producer.inputs[0]) or (0,))[-1] == shape[-1]:
        chain.append(producer)
        producer = _maker(producer.inputs[0])
    bias = producer if is_op(producer, "Add") else None
    if bias is not None:
        chain.append(bias)
        if [shape_of(v) for v in bias.inputs if constant_of(v) is not None] != [shape[-1:]]:
            return "what is added is not one number per output"
        producer = _maker(next(v for v in bias.inputs if constant_of(v) is None))
    if producer is None or not _is_linear(producer):
        return "what it cuts does not come from a linear layer"
    made = [producer, *reversed(chain)]
    if any(sole_consumer(one.outputs[0]) is not other for one, other in itertools.pairwise(made)):
        return "the whole is read elsewhere too"
    return producer, bias


def _maker(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _is_linear(node: ir.Node) -> bool:
    if not is_op(node, "Gemm", "MatMul") or len(shape_of(node.inputs[1]) or ()) != 2:
        return False
    bias = shape_of(node.inputs[2]) if len(node.inputs) > 2 else None
    return all(constant_of(v) is not None for v in node.inputs[1:] if v is not None) and (
        bias is None or len(bias) == 1
    )


def _cut(graph: ir.Graph, linear: ir.Node, bias: ir.Node | None, split: ir.Node) -> None:
    whole, rows = shape_of(linear.outputs[0]) or (), bool(attribute(linear, "transB", 0))
    ends = list(itertools.accumulate((shape_of(part) or ())[-1] for part in split.outputs))
    replaced = [one for one in (linear, bias) if one is not None]
    for start, end, part in zip([0, *ends], ends, list(split.outputs), strict=False):
        inputs: list[ir.Value | None] = [linear.inputs[0]]
        inputs += [
            _piece(graph, value, start, end, rows=rows and index == 0) for index, value in enumerate(linear.inputs[1:])
        ]
        shape = (*whole[:-1], end - start)
        made = edit.insert(
            split,
            linear.op_type,
            inputs,
            attributes=dict(linear.attributes),
            source=part,
            replaces=replaced,
            shape=shape,
        )
        if bias is not None:
            added = next(v for v in bias.inputs if constant_of(v) is not None)
            number = _piece(graph, added, start, end, rows=False)
            made = edit.insert(split, "Add", [made, number], source=part, replaces=replaced, shape=shape)
        wanted = shape_of(part) or ()
        if shape != wanted:
            made = insert_step(split, made, Step("Reshape", wanted), replaces=[])
        edit.replace_value(part, made)
    edit.remove_dead(graph, [split])


def _piece(graph: ir.Graph, value: ir.Value | None, start: int, end: int, *, rows: bool) -> ir.Value | None:
    """The part of a constant that belongs to some outputs: of its rows, or of its last axis."""
    array = constant_of(value)
    if value is None or array is None:
        return None
    piece = array[start:end] if rows else array[..., start:end]
    return edit.add_initializer(graph, piece, name=f"{value.name}/{start}", source=value)
