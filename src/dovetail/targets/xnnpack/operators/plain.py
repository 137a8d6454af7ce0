"""Mappings of operators to the torch functions that a torch model would call, for the stock program to compare with."""

from __future__ import annotations

from dovetail.targets.xnnpack.operators import (
    activation,
    arithmetic,
    layout,
    linear,
    norm,
    pool,
    reduce,
    repeat,
    resize,
)
from dovetail.targets.xnnpack.operators.registry import OPERATORS, Call, Function, Operator, torch

_REGISTERED = (activation, arithmetic, layout)  # importing them fills the registry


def _matmul(call: Call) -> Function:
    if linear.is_constant(call, 1) and len(call.shape(1)) == 2:
        return linear.linear
    return lambda x, y: torch.matmul(x, y)


def _softmax(call: Call) -> Function:
    axis = call.axis(-1)
    return lambda x: torch.softmax(x, axis)


def _split(call: Call) -> Function:
    axis = call.axis(0)
    sizes = [call.output_shape(i)[axis] for i in range(len(call.node.outputs))]
    return lambda x, *_: torch.split(x, sizes, axis)


def _gather(call: Call) -> Function:
    index = call.constant(1)
    if index is None or index.ndim:
        gather: Function = layout.gather(call)
        return gather
    axis, selected = call.axis(0), int(index)
    return lambda x, *_: torch.select(x, axis, selected)


def _squeeze(call: Call) -> Function:
    shape, axes = call.shape(), call.constant(1)
    removed = [i for i, size in enumerate(shape) if size == 1] if axes is None else [int(axis) for axis in axes]
    return lambda x, *_: torch.squeeze(x, removed)


def _activation(call: Call) -> Function:
    function = getattr(torch.nn.functional, call.node.op_type.lower())
    if call.node.op_type not in ("Celu", "Elu"):
        return lambda x: function(x)
    alpha = float(call.attribute("alpha", 1.0))
    return lambda x: function(x, alpha)


PLAIN = {
    **OPERATORS,
    **{op: Operator(_activation) for op in ("Celu", "Elu", "Mish", "Softplus", "Softsign")},
    "AveragePool": Operator(pool.native_pool),
    "Expand": Operator(repeat.native_expand, constants=(1,)),
    "Gather": Operator(_gather),
    **{op: Operator(pool.native_global_pool) for op in ("GlobalAveragePool", "GlobalMaxPool")},
    "GroupNormalization": Operator(norm.native_group_norm),
    "InstanceNormalization": Operator(norm.native_group_norm),
    "LayerNormalization": Operator(norm.native_layer_norm),
    "MatMul": Operator(_matmul),
    "Pow": Operator(lambda call: lambda x, y: torch.pow(x, y)),
    "Reciprocal": Operator(lambda call: lambda x: torch.reciprocal(x)),
    **{op: Operator(reduce.native_reduction, constants=(1,)) for op in reduce.REDUCTIONS},
    "Resize": Operator(resize.native_resize, constants=(1, 2, 3)),
    "Softmax": Operator(_softmax),
    "Split": Operator(_split, constants=(1,)),
    "Squeeze": Operator(_squeeze, constants=(1,)),
    "Tile": Operator(repeat.native_tile, constants=(1,)),
}
