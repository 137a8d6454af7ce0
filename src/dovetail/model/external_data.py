"""Check the external data files of a model before any of them is opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from dovetail.errors import InputError

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def check_external_data(model: ir.Model, folder: Path) -> None:
    """Refuse external data that is outside the model's folder, is missing, or has the wrong size for its shape."""
    for tensor in _external_tensors(model):
        _check_location(tensor, folder)
        _check_size(tensor)


def external_files(path: Path) -> tuple[Path, ...]:
    """The external data files of a model, each once, in the order in which the model names them."""
    graph = onnx.load(path, load_external_data=False).graph
    external = (tensor for tensor in _tensors(graph) if tensor.data_location == onnx.TensorProto.EXTERNAL)
    locations = (entry.value for tensor in external for entry in tensor.external_data if entry.key == "location")
    return tuple(dict.fromkeys(path.parent / location for location in locations))


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The tensors of a graph and of the graphs in it: protos, because reading a model into onnx_ir takes ten times as
    long."""
    yield from graph.initializer
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        if attribute.type == onnx.AttributeProto.TENSOR:
            yield attribute.t
        for inner in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
            yield from _tensors(inner)


def _check_location(tensor: ir.ExternalTensor, folder: Path) -> None:
    location = Path(tensor.location)
    label = f"external data {str(location)!r} of tensor {tensor.name!r}"
    path = folder / location
    if location.is_absolute() or not path.resolve().is_relative_to(folder.resolve()) or ".." in location.parts:
        raise InputError(
            f"{label} must be a relative path without '..' inside the model's folder; move the file there and update "
            "`location`"
        )
    if not path.is_file():
        raise InputError(f"{label} is missing: the file {str(path)!r} does not exist")
    if path.stat().st_nlink > 1:
        # onnx and onnx_ir refuse these when the data is used: a hard link can point anywhere on the disk.
        raise InputError(f"{label} has several hard links, which ONNX does not allow; copy the file")


def _check_size(tensor: ir.ExternalTensor) -> None:
    offset = tensor.offset or 0
    have = Path(tensor.path).stat().st_size
    label = f"external data {str(tensor.location)!r} of tensor {tensor.name!r}"
    if offset < 0 or offset + tensor.nbytes > have:
        raise InputError(
            f"{label} is too short: the tensor needs {tensor.nbytes} bytes from offset {offset}, the file has {have}"
        )
    if tensor.length is not None and tensor.length != tensor.nbytes:
        raise InputError(
            f"{label} has length {tensor.length} in the model, but dtype and shape need {tensor.nbytes} bytes"
        )


def _external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value
    for node in model.graph.all_nodes():
        for attr in node.attributes.values():
            if attr.type == ir.AttributeType.TENSOR and isinstance(attr.value, ir.ExternalTensor):
                yield attr.value
