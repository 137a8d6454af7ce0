"""Read an ONNX file into a model whose every name, opset and weight is known to be in order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes import common

from dovetail.errors import InputError
from dovetail.model import known_ops, origin
from dovetail.model.check_proto import check_proto
from dovetail.model.check_types import check_types
from dovetail.model.edit import constant_of, is_float, shape_of
from dovetail.model.external_data import check_external_data
from dovetail.model.opset import raise_opset
from dovetail.model.skeleton import skeleton
from dovetail.whole_number import LARGEST

Shapes = Mapping[str, tuple[int, ...]]
# What a model remembers of its file, once its opset is raised: the opset that it had.
ORIGINAL_OPSET = "dovetail.opset"


def read(path: str | Path, shapes: Shapes = MappingProxyType({})) -> ir.Model:
    """Load a model, pin the shapes of its inputs, raise its opset and stamp every name as the original one.

    Weights beside the file stay there and are mapped when used. Initializers that are also listed as inputs (as every
    file before IR version 4 had to) are constants. Functions are inlined.
    """
    path = Path(path)
    model = _load(path)
    known_ops.check_opset(model)
    known_ops.check_ops(model)
    check_external_data(model, path.parent.absolute())
    names = _value_names(model)
    _put_in_order(model)
    _forget_placeholders(model)
    pin_shapes(model, shapes)
    name_nodes(model.graph)
    check_types(model)
    opset = model.opset_imports.get("", 0)
    model = raise_opset(model)
    model.meta[ORIGINAL_OPSET] = opset
    name_nodes(model.graph)  # those that the conversion added
    origin.stamp(model, names)
    _check_valid(model, path)
    return model


def pin_shapes(model: ir.Model, shapes: Shapes) -> None:
    """Give inputs their static shapes; an input that shares a named dimension with a pinned one is bound too."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    bound: dict[str, int] = {}
    for name, wanted in shapes.items():
        if name not in inputs:
            raise InputError(f"--shape {name}: the model has no input {name!r}, it has {', '.join(inputs)}")
        declared = inputs[name].shape
        if any(size < 1 for size in wanted):
            raise InputError(f"--shape {name}: {_text(wanted)} has a dimension below 1")
        if math.prod(wanted) > LARGEST:
            raise InputError(f"--shape {name}: {_text(wanted)} has more than {LARGEST} elements")
        if declared is not None:
            _bind(name, declared, wanted, bound)
        inputs[name].shape = ir.Shape(wanted)
    for value in inputs.values():
        if value.shape is not None:
            value.shape = ir.Shape([bound.get(_symbol(dim), dim) for dim in value.shape])


def require_static(model: ir.Model) -> None:
    """Refuse a model with an input whose shape is not fully known."""
    for value in model.graph.inputs:
        if value.shape is None or not value.shape.is_static():
            found = "unknown" if value.shape is None else _text(value.shape)
            raise InputError(
                f"input {value.name!r} has the shape {found}: pin it, for example --shape {value.name}=1,3,224,224"
            )


def require_float32(model: ir.Model) -> None:
    """Refuse a graph that computes in another float type: half precision is the target's business, not the model's."""
    for node in model.graph:
        for value in node.outputs:
            if value.dtype is not None and value.dtype.is_floating_point() and value.dtype is not ir.DataType.FLOAT:
                raise InputError(
                    f"tensor {origin.origin_of(value).name!r} is {value.dtype.name.lower()}: give the float32 model"
                )


def require_known_shapes(model: ir.Model) -> None:
    """Refuse a graph in which the size of a float tensor or of an output is only known once the data is."""
    for value in (*model.graph.outputs, *(v for node in model.graph for v in node.outputs if is_float(v))):
        if shape_of(value) is None:
            raise InputError(f"tensor {origin.origin_of(value).name!r} has no static shape: it depends on the data")


def require_numbers(model: ir.Model) -> None:
    """Refuse a model with NaN in its weights; an infinite bound or mask can be right, and is seen where it acts."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            array = constant_of(value) if is_float(value) else None
            if array is not None and array.size and np.isnan(array.min()):
                raise InputError(f"weight {origin.origin_of(value).name!r} holds NaN: a float model must be finite")


def _load(path: Path) -> ir.Model:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    try:
        proto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise InputError(f"{str(path)!r} is not an ONNX file, or it is cut short") from error
    del data
    if not proto.opset_import or not proto.graph.node:
        raise InputError(f"{str(path)!r} holds no graph: it is not an ONNX model, or it is cut short")
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        raise InputError(f"initializer {name!r} is sparse, which is not supported")
    check_proto(proto)
    try:
        model: ir.Model = ir.from_proto(proto)
    except ir.serde.SerdeError as error:
        raise InputError(f"{str(path)!r} is damaged: {_first_line(error)}") from error
    ir.external_data.set_base_dir(model.graph, path.parent.absolute())
    return model


def _put_in_order(model: ir.Model) -> None:
    """Sort the nodes, inline functions, move big Constant nodes to initializers, drop initializers from the inputs."""
    _check_inputs(model)
    try:
        model.graph.sort()
    except ValueError as error:
        raise InputError(f"node {_node_in_cycle(model.graph).name!r} depends on its own output") from error
    try:
        common.InlinePass()(model)
        common.LiftConstantsToInitializersPass()(model)
    except (TypeError, ValueError, RuntimeError, ir.passes.InvariantError) as error:  # all that onnx_ir raises
        raise InputError(f"the model's functions or constants are damaged: {_first_line(error)}") from error
    common.RemoveInitializersFromInputsPass()(model)


def _node_in_cycle(graph: ir.Graph) -> ir.Node:
    """A node that would be left when all that can be computed has been, and its feeders followed round once."""
    pending = set(graph)
    while ready := [each for each in pending if not pending & set(each.predecessors())]:
        pending.difference_update(ready)
    node = next(each for each in graph if each in pending)
    for _ in pending:  # what merely hangs below a cycle leads up into it
        node = next(each for each in node.predecessors() if each in pending)
    return node


def _check_inputs(model: ir.Model) -> None:
    for value in model.graph.inputs:
        if not isinstance(value.type, ir.TensorType):
            raise InputError(f"input {value.name!r} is not a tensor")


def _check_valid(model: ir.Model, path: Path) -> None:
    try:
        onnx.checker.check_model(skeleton(model))
    except onnx.checker.ValidationError as error:
        raise InputError(f"{str(path)!r} is not a valid model: {_first_line(error)}") from error


def name_nodes(graph: ir.Graph) -> None:
    """Give every node a name of its own: an unnamed one is called after its operator and output."""
    nodes = list(graph.all_nodes())
    taken = {node.name for node in nodes}
    seen: set[str] = set()
    for node in nodes:
        name = node.name or f"{node.op_type}/{node.outputs[0].name}"
        if name in seen or not node.name:
            number, stem = 0, name
            while name in seen or name in taken:
                number += 1
                name = f"{stem}.{number}"
        seen.add(name)
        node.name = name


def _value_names(model: ir.Model) -> frozenset[str]:
    return frozenset(str(value.name) for value in _values(model) if value.name)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs


def _bind(name: str, declared: ir.Shape, wanted: Sequence[int], bound: dict[str, int]) -> None:
    what = f"--shape {name}: {_text(wanted)} does not go with the model's {_text(declared)}"
    if len(declared) != len(wanted):
        raise InputError(f"{what}: it has {len(declared)} dimensions")
    for dim, size in zip(declared, wanted, strict=True):
        symbol = _symbol(dim)
        if isinstance(dim, int) and dim != size:
            raise InputError(f"{what}: {dim} is fixed")
        if symbol and bound.setdefault(symbol, size) != size:
            raise InputError(f"{what}: {symbol!r} is already {bound[symbol]}")


def _symbol(dim: int | ir.SymbolicDim) -> str:
    return "" if isinstance(dim, int) or dim.value is None else str(dim.value)


def _forget_placeholders(model: ir.Model) -> None:
    """Make the ways in which exporters write an unknown size (-1, 0, ``?``) plainly unknown."""
    for value in model.graph.inputs:
        if value.shape is not None:
            unknown = [(isinstance(dim, int) and dim < 1) or _symbol(dim) == "?" for dim in value.shape]
            dims = [None if forget else dim for forget, dim in zip(unknown, value.shape, strict=True)]
            value.shape = ir.Shape(dims)


def _text(shape: ir.Shape | Sequence[int]) -> str:
    return ",".join("?" if not isinstance(dim, int) and dim.value is None else str(dim) for dim in shape)


def _first_line(error: BaseException) -> str:
    """The first line of what went wrong first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]
