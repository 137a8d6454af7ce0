"""How an operand is stored, as the builder reads it: also if something that it fuses is after the Q/DQ pair."""

from __future__ import annotations

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.attention import ScalePlace, scale_at
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import is_op
from dovetail.plan.validate import storage_on_edge
from dovetail.storage import Plan, Storage


def input_storage(node: ir.Node, index: int, plan: Plan) -> Storage:
    """How one input of a node is stored."""
    value = node.inputs[index]
    return storage_on_edge(plan, Edge(node.name or "", index), "" if value is None else str(value.name))


def operand_source(node: ir.Node, index: int, plan: Plan) -> tuple[ir.Value | None, Storage]:
    """The tensor that an operand comes from, after data movement, Casts and scales, and how it is stored.

    The operand itself, if nothing that it comes from is quantized.
    """
    value, storage = node.inputs[index], input_storage(node, index, plan)
    producer = None if value is None else value.producer()
    if isinstance(storage, QParams) or producer is None:
        return value, storage
    scale = scale_at(producer, ScalePlace.QUERY)
    if scale is None and not is_op(producer, "Cast", *DATA_MOVEMENT_OPS):
        return value, storage
    source = operand_source(producer, 0 if scale is None else producer.inputs.index(scale.data), plan)
    return source if isinstance(source[1], QParams) else (value, storage)
