"""Write a model completely or not at all, and the same model as the same bytes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import onnx_ir as ir

# Protobuf rejects messages of 2 GiB; above this size the weights go to a file beside the model.
_INLINE_LIMIT_BYTES = 1_500_000_000
# The suffix of that file, after the name of the model file.
DATA = ".data"


def write(model: ir.Model, path: Path) -> tuple[Path, ...]:
    """Write ``path`` (and ``path.data`` if the weights do not fit a protobuf) under a temporary name, then rename."""
    if weight_bytes(model) <= _INLINE_LIMIT_BYTES:
        write_whole(path, serialized(model))
        return (path,)
    data = path.with_name(path.name + DATA)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        # onnx_ir cannot save a view with external data.
        whole = model.clone() if isinstance(model.graph, ir.GraphView) else model
        ir.save(whole, Path(folder) / path.name, external_data=data.name)
        for file in (data, path):
            os.replace(Path(folder) / file.name, file)
    return (path, data)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it."""
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def weight_bytes(model: ir.Model) -> int:
    """The size of the initializers of a model in bytes."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def serialized(model: ir.Model) -> bytes:
    """The model as bytes, with external weights included."""
    proto = ir.to_proto(model)
    for tensor in proto.graph.initializer:
        value = model.graph.initializers[tensor.name].const_value
        if isinstance(value, ir.ExternalTensor):
            tensor.CopyFrom(ir.to_proto(ir.Tensor(value.numpy(), dtype=value.dtype, name=tensor.name)))
    return proto.SerializeToString(deterministic=True)
