"""Read an ONNX file and check its names, operators, types, opset and weights."""

from __future__ import annotations

import math
import stat
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
from dovetail.model.check_shapes import check_shapes
from dovetail.model.check_types import check_types
from dovetail.model.contributed import claim_early, rewrite_contributed
from dovetail.model.edit import constant_of, is_float, shape_of
from dovetail.model.external_data import check_external_data
from dovetail.model.inference import follows_values
from dovetail.model.onnx_crashes import REPORTED, Step, refuse_crash
from dovetail.model.opset import raise_opset
from dovetail.model.skeleton import skeleton, without_recorded_shapes
from dovetail.whole_number import LARGEST

Shapes = Mapping[str, tuple[int, ...]]
# Key in ``model.meta``: the opset of the file, before it was raised.
ORIGINAL_OPSET = "dovetail.opset"
# Key in ``model.meta``: what was changed so that the file itself cannot be run to compare with, one sentence each.
CHANGES = "dovetail.changes"
_LARGEST_FILE_BYTES = 2**31 - 1  # of any protobuf


def read(path: str | Path, shapes: Shapes = MappingProxyType({})) -> ir.Model:
    """Load a model, set the shapes of its inputs, raise its opset and record every name as the original one.

    External data stays in its files, which are memory-mapped when used. Initializers that are also listed as inputs
    (which files before IR version 4 required) are constants. Functions are inlined. Operators of ONNX Runtime's own
    domain are rewritten to ONNX where that is possible.
    """
    path = Path(path)
    model = _load(path)
    known_ops.check_opset(model)
    known_ops.check_ops(model)
    check_external_data(model, path.parent.absolute())
    names = _value_names(model)
    _put_in_order(model, path)
    claim_early(model)
    _forget_placeholders(model)
    changes = _drop_trailing_empty_inputs(model)
    pin_shapes(model, shapes)
    name_nodes(model.graph)
    check_types(model)
    opset = model.opset_imports.get("", 0)
    model = raise_opset(model)
    model.meta[ORIGINAL_OPSET] = opset
    model.meta[CHANGES] = changes
    name_nodes(model.graph)  # those that the conversion added
    origin.stamp(model, names)
    bare, shapeless = _tried(model)
    if rewrite_contributed(model):
        check_types(model)
        bare, shapeless = _tried(model)
    _check_valid(bare, path)
    check_shapes(model, shapeless)
    return model


def pin_shapes(model: ir.Model, shapes: Shapes) -> None:
    """Set the static shapes of inputs; their named dimensions get the same size in all other inputs."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    bound: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise InputError(f"--shape {name}: the model has no input {name!r}; its inputs are {', '.join(inputs)}")
        declared = inputs[name].shape
        if any(size < 1 for size in shape):
            raise InputError(f"--shape {name}: {_text(shape)} has a dimension below 1")
        if math.prod(shape) > LARGEST:
            raise InputError(f"--shape {name}: {_text(shape)} has more than {LARGEST} elements")
        if declared is not None:
            _bind(name, declared, shape, bound)
        inputs[name].shape = ir.Shape(shape)
    for value in inputs.values():
        if value.shape is not None:
            value.shape = ir.Shape([bound.get(_symbol(dim), dim) for dim in value.shape])


def require_float32(model: ir.Model) -> None:
    """Refuse a graph that does not compute in float32: the target decides where float16 is used, not the model."""
    for node in model.graph:
        for value in node.outputs:
            if value.dtype is not None and value.dtype.is_floating_point() and value.dtype is not ir.DataType.FLOAT:
                raise InputError(
                    f"tensor {origin.origin_of(value).name!r} is {value.dtype.name.lower()}; provide the float32 model"
                )


def require_known_shapes(model: ir.Model) -> None:
    """Refuse a graph in which the shape of a float tensor or of an output depends on the data."""
    for value in (*model.graph.outputs, *(v for node in model.graph for v in node.outputs if is_float(v))):
        if shape_of(value) is None:
            raise InputError(
                f"tensor {origin.origin_of(value).name!r} has no static shape: its shape depends on the data"
            )


def require_no_nan(model: ir.Model) -> None:
    """Refuse a model with NaN in its weights; infinities can be valid bounds or masks, and other checks cover them."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            array = constant_of(value) if is_float(value) else None
            if array is not None and array.size and np.isnan(array.min()):
                raise InputError(f"weight {origin.origin_of(value).name!r} holds NaN; fix the float model first")


def _load(path: Path) -> ir.Model:
    try:
        _check_file(path)
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    try:
        proto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise InputError(f"{str(path)!r} is not an ONNX file, or is truncated") from error
    del data
    if not proto.opset_import or not proto.graph.node:
        raise InputError(f"{str(path)!r} contains no graph: it is not an ONNX model, or is truncated")
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        raise InputError(f"initializer {name!r} is sparse, which is not supported; store it as a dense tensor")
    check_proto(proto)
    try:
        model: ir.Model = ir.from_proto(proto)
    except ir.serde.SerdeError as error:
        raise InputError(f"{str(path)!r} is corrupt: {_first_line(error)}") from error
    ir.external_data.set_base_dir(model.graph, path.parent.absolute())
    return model


def _check_file(path: Path) -> None:
    """Refuse what is not a file, such as a device that never ends, and a file that no protobuf can be."""
    if "\0" in str(path):
        raise InputError(f"{str(path)!r} cannot be read: it is not a file name")
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{str(path)!r} cannot be read: it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{str(path)!r} cannot be read: it is not a regular file but a device, pipe or socket")
    if status.st_size > _LARGEST_FILE_BYTES:
        raise InputError(
            f"{str(path)!r} has {status.st_size >> 20} MiB, but an ONNX file is smaller than 2048 MiB: "
            "larger models have their weights in external data"
        )


def _put_in_order(model: ir.Model, path: Path) -> None:
    """Sort the nodes, inline functions, make large Constant nodes initializers, drop initializers from the inputs."""
    _check_inputs(model)
    try:
        model.graph.sort()
    except ValueError as error:
        node = _node_in_cycle(model.graph)
        what = "a node with a subgraph" if node is None else f"node {node.name!r}"
        raise InputError(f"{what} depends on its own output: the graph has a cycle") from error
    try:
        common.InlinePass()(model)
        common.LiftConstantsToInitializersPass()(model)
    except (TypeError, ValueError, RuntimeError, ir.passes.InvariantError) as error:  # everything that onnx_ir raises
        raise InputError(
            f"{str(path)!r} has cyclic functions, or functions or constants that cannot be read: {_first_line(error)}"
        ) from error
    common.RemoveInitializersFromInputsPass()(model)


def _node_in_cycle(graph: ir.Graph) -> ir.Node | None:
    """A node of a cycle: one that is reached by following producers from a node that cannot be computed.

    None if the cycle is in a subgraph, or passes through what a subgraph reads from outside.
    """
    pending = set(graph)
    while ready := [node for node in pending if not pending & set(node.predecessors())]:
        pending.difference_update(ready)
    if not pending:
        return None
    node = next(node for node in graph if node in pending)
    for _ in pending:  # from a node downstream of a cycle, enough steps upstream end in the cycle
        node = next(producer for producer in node.predecessors() if producer in pending)
    return node


def _check_inputs(model: ir.Model) -> None:
    for value in model.graph.inputs:
        if not isinstance(value.type, ir.TensorType):
            raise InputError(
                f"input {value.name!r} is not a tensor (sequence, map and optional inputs are not supported)"
            )


def _tried(model: ir.Model) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The model without weights, and without recorded shapes: protos on which onnx was seen not to crash."""
    bare, shapeless = skeleton(model), without_recorded_shapes(model)
    infer = Step.INFER if follows_values(shapeless) else Step.INFER_WITHOUT_VALUES
    refuse_crash({Step.CHECK: bare, infer: shapeless})
    return bare, shapeless


def _check_valid(bare: onnx.ModelProto, path: Path) -> None:
    try:
        onnx.checker.check_model(bare)
    except REPORTED as error:
        raise InputError(f"{str(path)!r} is not a valid model: {_first_line(error)}") from error


def _drop_trailing_empty_inputs(model: ir.Model) -> tuple[str, ...]:
    """Drop empty names at the end of a node's inputs; ONNX Runtime 1.31.1 crashes on that of a LayerNormalization."""
    shortened = []
    for node in model.graph.all_nodes():
        count = len(node.inputs)
        while count and node.inputs[count - 1] is None:
            count -= 1
        if count < len(node.inputs):
            node.resize_inputs(count)
            shortened.append(f"{node.name or str(node.outputs[0].name)!r} ({node.op_type})")
    if not shortened:
        return ()
    more = f" and {len(shortened) - 1} others" if len(shortened) > 1 else ""
    return (f"empty inputs at the end of the inputs of {shortened[0]}{more} were dropped",)


def name_nodes(graph: ir.Graph) -> None:
    """Give every node a unique name: an unnamed node is named after its operator and output."""
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


def _bind(name: str, declared: ir.Shape, shape: Sequence[int], bound: dict[str, int]) -> None:
    """Check the shape set for an input against the declared one, and record the sizes of named dimensions."""
    message = f"--shape {name}: {_text(shape)} does not match the model's {_text(declared)}"
    if len(declared) != len(shape):
        raise InputError(f"{message}: expected {len(declared)} dimensions")
    for index, (dim, size) in enumerate(zip(declared, shape, strict=True)):
        symbol = _symbol(dim)
        if isinstance(dim, int) and dim != size:
            raise InputError(f"{message}: dimension {index} is fixed at {dim} in the model")
        if symbol and bound.setdefault(symbol, size) != size:
            raise InputError(
                f"{message}: dimension {index} ({symbol!r}) is {size} here, but {bound[symbol]} elsewhere; all "
                f"dimensions named {symbol!r} must be equal"
            )


def _symbol(dim: int | ir.SymbolicDim) -> str:
    return "" if isinstance(dim, int) or dim.value is None else str(dim.value)


def _forget_placeholders(model: ir.Model) -> None:
    """Replace the placeholders that exporters write for an unknown size (-1, 0, ``?``) by unknown dimensions."""
    for value in model.graph.inputs:
        if value.shape is not None:
            unknown = [(isinstance(dim, int) and dim < 1) or _symbol(dim) == "?" for dim in value.shape]
            dims = [None if forget else dim for forget, dim in zip(unknown, value.shape, strict=True)]
            value.shape = ir.Shape(dims)


def _text(shape: ir.Shape | Sequence[int]) -> str:
    return ",".join("?" if not isinstance(dim, int) and dim.value is None else str(dim) for dim in shape)


def _first_line(error: BaseException) -> str:
    """The first line of the message of the root cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]
