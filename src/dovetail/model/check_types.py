"""Check that the tensor types of a model match its operators, before a pass or a runtime fails on one that does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from dovetail.errors import InputError
from dovetail.model.edit import attribute
from dovetail.whole_number import LARGEST

# Rules Q123 and Q124 check their types: compilers accept combinations that ONNX does not define.
_NOT_CHECKED = ("QuantizeLinear", "DequantizeLinear")
_Formal = onnx.defs.OpSchema.FormalParameter
_Types = dict[ir.Value, ir.DataType]


def check_types(model: ir.Model) -> None:
    """Refuse a node without an input that its operator requires, or with types that it does not accept together.

    Nodes must be in topological order. Operators outside ONNX are not checked: their outputs have the declared type.
    """
    types: _Types = {}
    for node in model.graph.all_nodes():
        if node.op_type in _NOT_CHECKED:
            continue
        version = model.opset_imports.get(node.domain)
        if version is not None and onnx.defs.has(node.op_type, version, node.domain):
            _check_node(node, onnx.defs.get_schema(node.op_type, version, node.domain), types)


def _check_node(node: ir.Node, schema: onnx.defs.OpSchema, types: _Types) -> None:
    for index, formal in enumerate(schema.inputs):
        missing = index >= len(node.inputs) or node.inputs[index] is None
        if missing and formal.option == onnx.defs.OpSchema.FormalParameterOption.Single:
            raise InputError(f"{_where(node)} has no input {formal.name!r}, which it requires")
    bound: dict[str, ir.Value] = {}  # type parameter of the operator, such as T -> its first input
    for name in ("axis", "axes", "perm"):
        values = np.ravel(attribute(node, name, ()))
        for axis in values if values.dtype.kind == "i" else ():
            if abs(int(axis)) > LARGEST:  # onnx 1.23 crashes on that of a LayerNormalization
                raise InputError(f"{_where(node)}: {name} {axis} is out of range")
    if node.op_type == "Split" and attribute(node, "num_outputs", len(node.outputs)) != len(node.outputs):
        raise InputError(f"{_where(node)} has {len(node.outputs)} outputs, but its num_outputs is another number")
    for value, formal in _pairs(node.inputs, schema.inputs):
        dtype = _type_of(value, types)
        if dtype is None:
            continue
        if formal.types and not _accepts(formal, dtype):
            accepted = ", ".join(sorted(name.removeprefix("tensor(").removesuffix(")") for name in formal.types))
            raise InputError(
                f"{_where(node)} does not accept its input {value.name!r}, which is {_name(dtype)}; "
                f"expected one of {accepted}"
            )
        first = bound.setdefault(formal.type_str, value)
        if formal.is_homogeneous and _type_of(first, types) is not dtype:
            raise InputError(
                f"{_where(node)} requires inputs of one type, but {first.name!r} is {_name(_type_of(first, types))} "
                f"and {value.name!r} is {_name(dtype)}; export the model in one type, or add a Cast"
            )
    for value, formal in _pairs(node.outputs, schema.outputs):
        inferred = _output_type(node, formal, bound, types)
        if inferred is None:
            continue
        if value.dtype not in (None, inferred):
            raise InputError(
                f"{_where(node)} outputs {value.name!r} as {_name(inferred)}, "
                f"but the model declares it as {_name(value.dtype)}; export the model again"
            )
        types[value] = inferred


def _output_type(node: ir.Node, formal: _Formal, bound: dict[str, ir.Value], types: _Types) -> ir.DataType | None:
    """The type of an output, where the operator or the type of an input determines it."""
    if node.op_type == "Cast":
        return _cast_type(attribute(node, "to", 0), node)
    if formal.is_homogeneous and formal.type_str in bound:
        return _type_of(bound[formal.type_str], types)
    return None


def _cast_type(code: int, node: ir.Node) -> ir.DataType:
    if not code or code not in onnx.TensorProto.DataType.values():
        raise InputError(f"{_where(node)} casts to the unknown data type {code}")
    return ir.DataType(code)


def _pairs(values: Sequence[ir.Value | None], formals: Sequence[_Formal]) -> Iterator[tuple[ir.Value, _Formal]]:
    """Each tensor with its parameter in the operator's schema; the last parameter may be variadic."""
    for index, value in enumerate(values):
        if value is not None and value.name and formals:
            yield value, formals[min(index, len(formals) - 1)]


def _accepts(formal: _Formal, dtype: ir.DataType) -> bool:
    """Whether an operator accepts a type; bfloat16 wherever float32, as exporters write it before ONNX allows it."""
    as_float = dtype is ir.DataType.BFLOAT16 and _type_string(ir.DataType.FLOAT) in formal.types
    return as_float or _type_string(dtype) in formal.types


def _type_of(value: ir.Value, types: _Types) -> ir.DataType | None:
    if value.const_value is not None:
        return value.const_value.dtype
    return types.get(value, value.dtype if isinstance(value.type, ir.TensorType) else None)


def _type_string(dtype: ir.DataType) -> str:
    return f"tensor({_name(dtype)})"


def _name(dtype: ir.DataType | None) -> str:
    return "of unknown type" if dtype is None else dtype.name.lower()


def _where(node: ir.Node) -> str:
    return f"node {node.name!r} ({node.op_type})"
