"""Check a parsed ONNX file before it is used: names are valid text, and tensors hold the data their shapes need."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx_ir as ir

from dovetail.errors import InputError

# Elements of 6 bits are stored one by one; those of 4 and 2 bits are packed into bytes.
_UNPACKED_BITS = 6
_DATA_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def check_proto(proto: onnx.ModelProto) -> None:
    """Refuse a file that parses as ONNX but is inconsistent, as corrupt files are."""
    properties = [text for entry in proto.metadata_props for text in (entry.key, entry.value)]
    domains = [entry.domain for entry in proto.opset_import]
    _check_text([proto.producer_name, proto.producer_version, proto.domain, *domains, *properties], "the model")
    for function in proto.functions:
        _check_text([function.name, function.domain, *function.input, *function.output], "a function")
        _check_nodes(function.node, set(function.input), function.output)
    _check_graph(proto.graph, set())


def _check_graph(graph: onnx.GraphProto, outer: set[str]) -> None:
    _check_text([graph.name], "the graph")
    for info in (*graph.input, *graph.output, *graph.value_info):
        dims = [dim.dim_param for dim in info.type.tensor_type.shape.dim]
        _check_text([info.name, *dims], "a tensor's type")
    for tensor in graph.initializer:
        _check_text([tensor.name], "an initializer")
        _check_tensor(tensor)
    own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    _check_nodes(graph.node, outer | own, [info.name for info in graph.output])


def _check_nodes(nodes: Sequence[onnx.NodeProto], available: set[str], outputs: Iterable[str]) -> None:
    """Refuse nodes that read an undefined tensor or write a defined one again; their order is not checked."""
    defined = set(available)
    for node in nodes:
        _check_text([node.name, node.op_type, node.domain, node.overload, *node.input, *node.output], "a node")
        if not any(node.output):
            raise InputError(f"node {node.name!r} ({node.op_type!r}) has no output")
        for name in filter(None, node.output):
            if name in defined:
                raise InputError(f"tensor {name!r} is written twice, the second time by node {node.name!r}")
            defined.add(name)
    for node in nodes:
        for name in filter(None, node.input):
            if name not in defined:
                raise InputError(
                    f"node {node.name!r} ({node.op_type!r}) reads {name!r}, which the graph does not define"
                )
        for attr in node.attribute:
            _check_attribute(attr, node, defined)
    for name in outputs:
        if name not in defined:
            raise InputError(f"graph output {name!r} is not written by any node")


def _check_attribute(attr: onnx.AttributeProto, node: onnx.NodeProto, outer: set[str]) -> None:
    _check_text([attr.name, attr.ref_attr_name], f"an attribute of node {node.name!r}")
    if attr.type == onnx.AttributeProto.UNDEFINED:
        raise InputError(f"attribute {attr.name!r} of node {node.name!r} has no type")
    for tensor in _tensors(attr):
        _check_tensor(tensor)
    if attr.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
        for graph in [attr.g] if attr.type == onnx.AttributeProto.GRAPH else attr.graphs:
            _check_graph(graph, outer)


def _tensors(attr: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attr.type == onnx.AttributeProto.TENSOR:
        yield attr.t
    yield from attr.tensors


def _check_text(texts: Iterable[object], owner: str) -> None:
    """Refuse names that are not UTF-8, which protobuf returns as bytes."""
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"the name {text!r} of {owner} is not valid UTF-8: the file is corrupt")


def _check_tensor(tensor: onnx.TensorProto) -> None:
    _check_text([tensor.name, *(entry.key for entry in tensor.external_data)], "a tensor")
    label = f"tensor {tensor.name!r}"
    if any(size < 0 for size in tensor.dims):
        raise InputError(f"{label} has a negative dimension")
    if tensor.data_type not in onnx.TensorProto.DataType.values() or tensor.data_type == onnx.TensorProto.UNDEFINED:
        raise InputError(f"{label} has the unknown data type {tensor.data_type}")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_external(tensor, label)
        return
    size = math.prod(tensor.dims)
    bits = 8 if tensor.data_type == onnx.TensorProto.STRING else ir.DataType(tensor.data_type).bitwidth
    if tensor.HasField("raw_data"):
        have, need = len(tensor.raw_data), math.ceil(size * bits / 8)
    else:
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        other = next((name for name in _DATA_FIELDS if name != field and len(getattr(tensor, name))), None)
        if other is not None:
            name = onnx.TensorProto.DataType.Name(tensor.data_type)
            raise InputError(f"{label} has the type {name}, but values in the field {other}")
        have, need = len(getattr(tensor, field)), _entries(tensor.data_type, size, bits)
    if bits == _UNPACKED_BITS and not all(0 <= entry < 1 << bits for entry in tensor.int32_data):
        raise InputError(f"{label} has an element that {bits} bits do not hold")
    if have != need:
        raise InputError(f"{label} holds {have} elements or bytes, but its shape {list(tensor.dims)} needs {need}")


def _check_external(tensor: onnx.TensorProto, label: str) -> None:
    """Refuse a reference to external data that names no file or has an offset or length that is not a number."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    _check_text(entries.values(), f"the external data of {label}")
    location = entries.get("location", "")
    if not location or "\0" in location:
        raise InputError(f"{label} is in external data, but its location {location!r} is not a file name")
    for key in ("offset", "length"):
        if key in entries and re.fullmatch("[0-9]{1,18}", entries[key]) is None:
            raise InputError(f"external data {location!r} of {label}: its {key} {entries[key]!r} is not a number")


def _entries(data_type: int, size: int, bits: int) -> int:
    """How many entries a tensor needs in its typed data field: sub-byte types are packed, complex types need two."""
    if data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        return 2 * size
    return math.ceil(size * bits / 8) if bits < 8 else size
