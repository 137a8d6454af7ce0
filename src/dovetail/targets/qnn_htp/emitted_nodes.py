"""The nodes of an emitted graph as places in the caller's model, for the messages of the compiler.

The provider compiles Dequantize -> operator -> Quantize as one integer operator. Where it has no kernel for that, it
compiles the operator in float, and rejects the DequantizeLinear of a per-channel or int32 constant, which it cannot
run by itself. The node to report is then the operator, not the DequantizeLinear that is left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from dovetail.finding import Place, PlaceKind
from dovetail.model.edit import constant_of
from dovetail.model.origin import nodes_of
from dovetail.model.place import at_node, at_tensor
from dovetail.qdq.params import is_dequantize, is_quantize

_REAL_OR_UNKNOWN = (None, ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True, slots=True)
class EmittedNode:
    """Where a node of the emitted graph is in the caller's model.

    For the DequantizeLinear of a constant it is its consumer, with its ``operator`` and ``tried``: the dtypes with
    which the provider looked for a kernel.
    """

    place: Place
    operator: str = ""
    tried: str = ""


def emitted_nodes(emitted: Path) -> dict[str, EmittedNode]:
    """Return the nodes of an emitted graph by name."""
    graph = ir.load(emitted).graph
    # The baseline naive records no origins: its names are the caller's.
    has_origins = any(nodes_of(node) for node in graph)
    return {node.name or "": _emitted(node, has_origins) for node in graph}


def _emitted(node: ir.Node, has_origins: bool) -> EmittedNode:
    consumers = [user for user, _ in node.outputs[0].uses()] if is_dequantize(node) else []
    if len(consumers) == 1 and constant_of(node.inputs[0]) is not None:
        consumer = consumers[0]
        return EmittedNode(_place(consumer, has_origins), consumer.op_type, _dtypes(consumer, has_origins))
    return EmittedNode(_place(node, has_origins))


def _place(node: ir.Node, has_origins: bool) -> Place:
    """The place of a node; that of an inserted Q or DQ is its tensor."""
    if nodes_of(node):
        return at_node(node)
    if not has_origins:
        return Place(PlaceKind.NODE, (node.name or "",), op_type=node.op_type)
    source = node.inputs[0] if is_quantize(node) or is_dequantize(node) else node.outputs[0]
    return at_tensor(node.outputs[0] if source is None else source)


def _dtypes(node: ir.Node, has_origins: bool) -> str:
    """What an operator reads and writes, as in ``uint16 x int8 per channel x int32 -> uint16``."""
    inputs = [_read(value) for value in node.inputs if value is not None and value.dtype in _REAL_OR_UNKNOWN]
    users = [user for user, _ in node.outputs[0].uses()]
    in_float = next((user for user in users if not is_quantize(user)), None)
    if users and in_float is None:
        return f"{' x '.join(inputs)} -> {_stored(users[0])}"
    reader = "" if in_float is None else f", which {in_float.op_type} {str(_place(in_float, has_origins))!r} reads"
    return f"{' x '.join(inputs)} -> float{reader}"


def _read(value: ir.Value) -> str:
    """The dtype in which an operator reads an input."""
    producer = value.producer()
    if producer is None or not is_dequantize(producer):
        return "float"
    scale = constant_of(producer.inputs[1])
    return _stored(producer) + (" per channel" if scale is not None and scale.size > 1 else "")


def _stored(node: ir.Node) -> str:
    """The quantized dtype of a Q or DQ, from its constants: types need not be inferred in the file of another tool."""
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    dtypes = [value.dtype for value in (zero_point, node.inputs[0]) if value is not None and value.dtype is not None]
    return dtypes[0].name.lower() if dtypes else "integers"
