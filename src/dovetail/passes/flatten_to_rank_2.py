"""Run row-wise operators (elementwise, LayerNormalization, MatMul with a constant matrix) on [rows, channels].

Linear layers are Gemm on flat rows. On HTP a Reshape between [4,257,384] and [1028,384] moves every byte, so the nodes
between two linear layers are flattened too. HTP rejects some operators (Gelu, LayerNormalization) in rank 5; those are
always flattened to rank 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from dovetail.model import edit
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.layout import Step, insert_step
from dovetail.model.origin import origin_of
from dovetail.pass_record import PassRecord, Site

# Supported by all of them (onnxruntime-qnn 2.7.0, soc 43: Gelu, HardSwish, LayerNorm, Neg, Sqrt, Tanh reject rank 5).
MAX_RANK = 4
# fmt: off
_ELEMENTWISE = (
    "Abs", "Add", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mul", "Neg",
    "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh",
)
# fmt: on

Shape = tuple[int, ...]


@dataclass
class _Region:
    """Connected nodes that work on the same rows, in graph order; ``lead`` holds the sizes of the row axes."""

    lead: Shape
    nodes: list[ir.Node] = field(default_factory=list)

    def flat(self, value: ir.Value) -> Shape:
        return (math.prod(self.lead), (shape_of(value) or ())[-1])

    def entering(self) -> list[ir.Value]:
        written = {node.outputs[0] for node in self.nodes}
        return [v for v in dict.fromkeys(v for node in self.nodes for v in _data(node)) if v not in written]

    def leaving(self) -> list[ir.Value]:
        members = set(self.nodes)
        outputs = [node.outputs[0] for node in self.nodes]
        return [v for v in outputs if v.is_graph_output() or any(use.node not in members for use in v.uses())]


def flatten_to_rank_2(model: ir.Model) -> PassRecord:
    """Flatten connected nodes where that removes more Reshapes than it adds, or where their rank is above 4."""
    changed: list[Site] = []
    seen: set[ir.Node] = set()
    for node in list(model.graph):
        lead = None if node in seen else _lead(node)
        if lead is None:
            continue
        region = _grow(node, lead)
        seen.update(region.nodes)
        if len(lead) < MAX_RANK and _reshapes_added(region) >= 0:
            continue
        changed.append(
            Site(
                origin_of(node.outputs[0]).name, f"{len(region.nodes)} nodes with rows {list(lead)} flattened to rank 2"
            )
        )
        _rewrite(model.graph, region)
    return PassRecord("flatten_to_rank_2", tuple(changed))


def _lead(node: ir.Node) -> Shape | None:
    """The row axes of a node that computes every row on its own; None for any other node."""
    shape = shape_of(node.outputs[0]) if len(node.outputs) == 1 else None
    if shape is None or len(shape) < 3 or not _is_row_by_row(node):
        return None
    if any((shape_of(value) or ())[:-1] != shape[:-1] for value in _data(node)):
        return None
    constants = [value for value in node.inputs if value is not None and constant_of(value) is not None]
    if is_op(node, *_ELEMENTWISE) and any(_flat_constant(v, shape[:-1]) is None for v in constants):
        return None
    return shape[:-1]


def _is_row_by_row(node: ir.Node) -> bool:
    if is_op(node, "LayerNormalization"):
        return int(attribute(node, "axis", -1)) == -1
    if is_op(node, "MatMul"):
        return constant_of(node.inputs[1]) is not None and not edit.why_weight_not_matrix(node)
    return is_op(node, *_ELEMENTWISE)


def _data(node: ir.Node) -> list[ir.Value]:
    """The inputs that are not constants."""
    return [value for value in node.inputs if value is not None and constant_of(value) is None]


def _flat_constant(value: ir.Value, lead: Shape) -> Shape | None:
    """The shape of a constant for flat rows; None if it is broadcast along only some of the row axes."""
    shape = shape_of(value)
    if shape is None or len(shape) > len(lead) + 1:
        return None
    if math.prod(shape[:-1]) == 1:
        return shape[-1:]
    return (math.prod(lead), shape[-1]) if shape[:-1] == lead else None


def _grow(start: ir.Node, lead: Shape) -> _Region:
    members, pending = {start}, [start]
    while pending:
        node = pending.pop()
        for value in (*_data(node), node.outputs[0]):
            for neighbor in (value.producer(), *(use.node for use in value.uses())):
                if neighbor is not None and neighbor not in members and _lead(neighbor) == lead:
                    members.add(neighbor)
                    pending.append(neighbor)
    return _Region(lead, [node for node in edit.graph_of(start) if node in members])


def _reshapes_added(region: _Region) -> int:
    """How many Reshapes flattening adds: an existing one is reused, one from or to flat rows disappears."""
    added = 0
    for value in region.entering():
        producer = value.producer()
        if producer is None or not is_op(producer, "Reshape"):
            added += 1
        elif shape_of(producer.inputs[0]) == region.flat(value):
            added -= 1
    members = set(region.nodes)
    for value in region.leaving():
        consumers = [use.node for use in value.uses() if use.node not in members]
        added -= sum(
            is_op(consumer, "Reshape") and shape_of(consumer.outputs[0]) == region.flat(value) for consumer in consumers
        )
        added += value.is_graph_output() or not all(is_op(consumer, "Reshape") for consumer in consumers)
    return added


def _rewrite(graph: ir.Graph, region: _Region) -> None:
    flat: dict[ir.Value, ir.Value] = {}
    for node in region.nodes:
        inputs: list[ir.Value | None] = []
        for value in node.inputs:
            if value is not None and value not in flat:
                flat[value] = _flattened(graph, node, value, region)
            inputs.append(value if value is None else flat[value])
        output = node.outputs[0]
        flat[output] = edit.insert(
            node,
            node.op_type,
            inputs,
            attributes=dict(node.attributes),
            source=output,
            replaces=[node],
            shape=region.flat(output),
        )
    leaving = set(region.leaving())
    for node in region.nodes:
        output = node.outputs[0]
        new = flat[output]
        if output in leaving:
            new = insert_step(node, new, Step("Reshape", shape_of(output) or ()), replaces=[])
        edit.replace_value(output, new)
    edit.remove_dead(graph, reversed(region.nodes))


def _flattened(graph: ir.Graph, node: ir.Node, value: ir.Value, region: _Region) -> ir.Value:
    array = constant_of(value)
    if array is None:
        return insert_step(node, value, Step("Reshape", region.flat(value)), replaces=[])
    shape = _flat_constant(value, region.lead) if is_op(node, *_ELEMENTWISE) else None
    if shape is None or shape == array.shape or array.ndim == 0:
        return value
    return edit.add_initializer(graph, array.reshape(shape), name=f"{value.name}/flat", source=value)
