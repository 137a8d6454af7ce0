"""Writing a model whole or not at all, the same bytes for the same model."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import onnx_ir as ir

# Protobuf refuses messages of 2 GiB; past this size the weights go to a file beside the model.
_INLINE_LIMIT_BYTES = 1_500_000_000
# What the name of that file ends in, behind the model's.
DATA = ".data"


def write(model: ir.Model, path: Path) -> tuple[Path, ...]:
    """Write ``path`` (and ``path.data`` when the weights do not fit a protobuf), by a temporary name and a rename."""
    if weight_bytes(model) <= _INLINE_LIMIT_BYTES:
        write_whole(path, serialized(model))
        return (path,)
    data = path.with_name(path.name + DATA)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as part:
        ir.save(model, Path(part) / path.name, external_data=data.name)
        for file in (data, path):
            os.replace(Path(part) / file.name, file)
    return (path, data)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file by a temporary name and a rename."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)


def weight_bytes(model: ir.Model) -> int:
    """How much the constants of a model take."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def serialized(model: ir.Model) -> bytes:
    """The model as bytes, weights that stand in a file of their own taken in."""
    proto = ir.to_proto(model)
    for tensor in proto.graph.initializer:
        value = model.graph.initializers[tensor.name].const_value
        if isinstance(value, ir.ExternalTensor):
            tensor.CopyFrom(ir.to_proto(ir.Tensor(value.numpy(), dtype=value.dtype, name=tensor.name)))
    return proto.SerializeToString(deterministic=True)
