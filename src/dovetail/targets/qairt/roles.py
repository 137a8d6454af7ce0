"""What the converter can make of a tensor without an encoding: its role in the graph as the converter reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import onnx_ir as ir

from dovetail.encodings.shapes import LINEAR
from dovetail.model.data_movement import DATA_MOVEMENT_OPS
from dovetail.model.edit import constant_of, is_float, sole_consumer
from dovetail.passes.fuse_layer_norm import fuse_layer_norm
from dovetail.plan.blocks import WEIGHT

BIAS = 2
BIAS_ADD = "Add"
# Operators after which AIMET's configuration for HTP quantizes only once, after the activation.
_BEFORE_ACTIVATION = ("Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm")
_ACTIVATIONS = ("Clip", "LeakyRelu", "PRelu", "Relu")
# Inputs that the converter makes parameters of the operator: they are no tensors on the device.
_PARAMETERS = {
    "Clip": (1, 2),
    "Pad": (2,),
    "Resize": (1, 2),
    "BatchNormalization": (1, 2, 3, 4),
    "Dropout": (1,),
    "Upsample": (1,),
    "OneHot": (2,),
}


class Role(StrEnum):
    """What a tensor is to the converter."""

    INPUT = "input of the graph"
    ACTIVATION = "activation"
    PASSED_THROUGH = "output of an operator that only moves data"
    FUSED = "between fused operators"
    WEIGHT = "weight"
    BIAS = "bias"
    CONSTANT = "constant operand"


@dataclass(frozen=True, slots=True)
class TensorRole:
    """A float tensor of the graph. ``follows``: the tensor whose encoding applies to it as well, if there is one."""

    value: ir.Value
    role: Role
    follows: str = ""


def tensor_roles(model: ir.Model) -> dict[str, TensorRole]:
    """The float tensors of a graph as the converter reads it, by name, in graph order; integers are not quantized."""
    roles = {str(v.name): TensorRole(v, Role.INPUT) for v in model.graph.inputs if is_float(v)}
    fused = _inside_layer_norm(model)
    for node in model.graph:
        for index, operand in enumerate(node.inputs):
            if operand is not None and constant_of(operand) is not None and _is_operand(node, index, operand):
                roles.setdefault(str(operand.name), TensorRole(operand, _constant_role(node, index, operand)))
        for output in node.outputs:
            if is_float(output) and output.name and constant_of(output) is None:
                roles[output.name] = _output_role(node, output, fused)
    return roles


def _is_operand(node: ir.Node, index: int, operand: ir.Value) -> bool:
    return is_float(operand) and index not in _PARAMETERS.get(node.op_type, ())


def _constant_role(node: ir.Node, index: int, operand: ir.Value) -> Role:
    if index == WEIGHT and node.op_type in LINEAR:
        return Role.WEIGHT
    if index == BIAS and node.op_type in (*LINEAR, "InstanceNormalization", "LayerNormalization"):
        return Role.BIAS
    return Role.BIAS if _is_added_bias(node, operand) else Role.CONSTANT


def _is_added_bias(node: ir.Node, operand: ir.Value) -> bool:
    """Whether an Add after a MatMul adds one value per output channel."""
    array = constant_of(operand)
    if node.op_type != BIAS_ADD or array is None or array.ndim == 0 or array.size != array.shape[-1]:
        return False
    others = [value.producer() for value in node.inputs if value is not None and value is not operand]
    return any(producer is not None and producer.op_type == "MatMul" for producer in others)


def _output_role(node: ir.Node, output: ir.Value, inside_norm: frozenset[str]) -> TensorRole:
    name = str(output.name)
    source = node.inputs[0] if node.inputs else None
    if node.op_type in DATA_MOVEMENT_OPS and source is not None and constant_of(source) is None:
        return TensorRole(output, Role.PASSED_THROUGH, str(source.name))
    if name in inside_norm:
        return TensorRole(output, Role.FUSED)
    after = None if output.is_graph_output() else sole_consumer(output)
    if after is not None and _is_fused(node, output, after):
        return TensorRole(output, Role.FUSED, str(after.outputs[0].name))
    return TensorRole(output, Role.ACTIVATION)


def _is_fused(node: ir.Node, output: ir.Value, after: ir.Node) -> bool:
    if after.op_type in _ACTIVATIONS:
        return node.op_type in _BEFORE_ACTIVATION or node.op_type == "MatMul"
    if after.op_type == "BatchNormalization":
        return node.op_type in ("Conv", "ConvTranspose", "Gemm")
    return node.op_type == "MatMul" and added_bias(output) is not None


def added_bias(output: ir.Value) -> ir.Value | None:
    """The constant that the only consumer of a MatMul's output, an Add, adds to every row of it."""
    after = sole_consumer(output)
    if after is None or after.op_type != BIAS_ADD:
        return None
    return next((v for v in after.inputs if v is not None and v is not output and _is_added_bias(after, v)), None)


def _inside_layer_norm(model: ir.Model) -> frozenset[str]:
    """The tensors inside a LayerNorm that is several operators, of which AIMET only quantizes the last output."""
    fused = model.clone()
    fuse_layer_norm(fused)
    left = {value.name for node in fused.graph for value in node.outputs}
    return frozenset(str(v.name) for node in model.graph for v in node.outputs if v.name not in left)


def conv_addends(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Constants that a Mul or Add after a Conv reads, as a BatchNorm that was not folded has them."""
    for node in model.graph:
        if node.op_type not in ("Add", "Mul"):
            continue
        operands = [value for value in node.inputs if value is not None]
        if not any(_behind_conv(value) for value in operands):
            continue
        yield from ((node, value) for value in operands if constant_of(value) is not None)


def _behind_conv(value: ir.Value) -> bool:
    """Whether a tensor is the output of a Conv, or of a Mul or Add with a constant after one."""
    producer = value.producer()
    while producer is not None and producer.op_type in ("Add", "Mul"):
        data = [v for v in producer.inputs if v is not None and constant_of(v) is None]
        if len(data) != 1:
            return False
        producer = data[0].producer()
    return producer is not None and producer.op_type in ("Conv", "ConvTranspose")
