"""A model's proto without its weights, for the tools of the onnx package, which serialize the whole model."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

# Shape constants and scalars stay, because shape inference and opset conversion read their values.
_INLINE_BYTES = 1024


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """The model with every initializer above a kilobyte turned into an input; the model itself is not changed."""
    bare = model.clone()
    for value in list(bare.graph.initializers.values()):
        if value.const_value is None:
            continue
        if value.const_value.nbytes <= _INLINE_BYTES:
            # A copy, because the tools cannot read external data, and because the tensor's own name is serialized.
            array = np.array(value.const_value.numpy())
            value.const_value = ir.Tensor(array, value.const_value.dtype, name=value.name)
        else:
            value.type = ir.TensorType(value.const_value.dtype)
            value.shape = ir.Shape(value.const_value.shape.numpy())
            del bare.graph.initializers[str(value.name)]
            bare.graph.inputs.append(value)
    return ir.serde.serialize_model(bare)


def refill(bare: ir.Model, model: ir.Model) -> None:
    """Restore the weights and inputs of ``model``, in place, in a model that was made from its skeleton."""
    inputs = {value.name for value in model.graph.inputs}
    for value in list(bare.graph.inputs):
        if value.name in inputs:
            continue
        bare.graph.inputs.remove(value)
        value.const_value = model.graph.initializers[str(value.name)].const_value
        bare.graph.register_initializer(value)
