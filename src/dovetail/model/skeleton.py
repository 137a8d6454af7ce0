"""A model's proto without its weights, for the tools of the onnx package, which serialize whatever they are given."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

# Shape constants and scalars stay inside, because inference and conversion look at their numbers.
_INSIDE_BYTES = 1024


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """The model with every initializer above a kilobyte turned into an input; the model itself is not touched."""
    bare = model.clone()
    for value in list(bare.graph.initializers.values()):
        if value.const_value is None:
            continue
        if value.const_value.nbytes <= _INSIDE_BYTES:
            # A copy, because external data is out of the tools' reach and a tensor's name is written when serialized.
            array = np.array(value.const_value.numpy())
            value.const_value = ir.Tensor(array, value.const_value.dtype, name=value.name)
        else:
            value.type = ir.TensorType(value.const_value.dtype)
            value.shape = ir.Shape(value.const_value.shape.numpy())
            del bare.graph.initializers[str(value.name)]
            bare.graph.inputs.append(value)
    return ir.serde.serialize_model(bare)


def refill(bare: ir.Model, model: ir.Model) -> None:
    """Give a model that was made from the skeleton of ``model`` its weights and its own inputs back, in place."""
    inputs = {value.name for value in model.graph.inputs}
    for value in list(bare.graph.inputs):
        if value.name in inputs:
            continue
        bare.graph.inputs.remove(value)
        value.const_value = model.graph.initializers[str(value.name)].const_value
        bare.graph.register_initializer(value)
