"""Check that the tensor types of a model go together, before a pass or a runtime trips over one that does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from dovetail.errors import InputError
from dovetail.model.edit import attribute

# Their types have rules of their own (Q123, Q124): compilers take mixtures that ONNX does not know.
_NOT_CHECKED = ("QuantizeLinear", "DequantizeLinear")
_Formal = onnx.defs.OpSchema.FormalParameter
_Types = dict[ir.Value, ir.DataType]


def check_types(model: ir.Model) -> None:
    """Refuse a node whose inputs are of types that its operator does not take together, as float32 times float64.

    Nodes are in order. Of operators outside ONNX nothing is known: what they make is of the type that is declared.
    """
    types: _Types = {}
    for node in model.graph.all_nodes():
        if node.op_type in _NOT_CHECKED:
            continue
        version = model.opset_imports.get(node.domain)
        if version is not None and onnx.defs.has(node.op_type, version, node.domain):
            _check_node(node, onnx.defs.get_schema(node.op_type, version, node.domain), types)


def _check_node(node: ir.Node, schema: onnx.defs.OpSchema, types: _Types) -> None:
    bound: dict[str, ir.Value] = {}  # a type parameter of the operator, as T -> the first input that is of it
    for value, formal in _pairs(node.inputs, schema.inputs):
        dtype = _type_of(value, types)
        if dtype is None:
            continue
        if formal.types and _word(dtype) not in formal.types:
            raise InputError(f"{_where(node)} does not take {value.name!r}, which is {_name(dtype)}")
        first = bound.setdefault(formal.type_str, value)
        if formal.is_homogeneous and _type_of(first, types) is not dtype:
            raise InputError(
                f"{_where(node)} takes tensors of one type: {first.name!r} is {_name(_type_of(first, types))}, "
                f"{value.name!r} is {_name(dtype)}; export the model in one type, or add a Cast"
            )
    for value, formal in _pairs(node.outputs, schema.outputs):
        made = _made(node, formal, bound, types)
        if made is None:
            continue
        if value.dtype not in (None, made):
            raise InputError(
                f"{_where(node)} makes {value.name!r} as {_name(made)}: it is declared {_name(value.dtype)}"
            )
        types[value] = made


def _made(node: ir.Node, formal: _Formal, bound: dict[str, ir.Value], types: _Types) -> ir.DataType | None:
    """The type of an output, where that of an input or the operator itself says it."""
    if node.op_type == "Cast":
        return _known_type(attribute(node, "to", 0), node)
    if formal.is_homogeneous and formal.type_str in bound:
        return _type_of(bound[formal.type_str], types)
    return None


def _known_type(code: int, node: ir.Node) -> ir.DataType:
    if not code or code not in onnx.TensorProto.DataType.values():
        raise InputError(f"{_where(node)} gives the unknown type {code}")
    return ir.DataType(code)


def _pairs(values: Sequence[ir.Value | None], formals: Sequence[_Formal]) -> Iterator[tuple[ir.Value, _Formal]]:
    """Each tensor with what the operator's schema says of its place; the last place may stand for many."""
    for index, value in enumerate(values):
        if value is not None and value.name and formals:
            yield value, formals[min(index, len(formals) - 1)]


def _type_of(value: ir.Value, types: _Types) -> ir.DataType | None:
    if value.const_value is not None:
        return value.const_value.dtype
    return types.get(value, value.dtype if isinstance(value.type, ir.TensorType) else None)


def _word(dtype: ir.DataType) -> str:
    return f"tensor({_name(dtype)})"


def _name(dtype: ir.DataType | None) -> str:
    return "of no known type" if dtype is None else dtype.name.lower()


def _where(node: ir.Node) -> str:
    return f"node {node.name!r} ({node.op_type})"
