"""The planned ONNX graph as a torch module that runs it node by node, for ``torch.export``.

Requirements of the lowering, each found by a failure (executorch 1.5.1): every consumer has a dequantize of its own, or
the lowering fails with "Invalid partition, found dependency cycles"; the zero points of a weight are a buffer; a linear
layer's weight is [outputs, inputs], or the layer does not run in int8; its bias is float, and XNNPACK makes it int32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, QParams
from dovetail.errors import InputError
from dovetail.model.edit import attribute, constant_of, is_op
from dovetail.numerics.affine import dequantize
from dovetail.qdq.params import is_dequantize, is_quantize, qparams_of
from dovetail.targets.xnnpack.dynamic import is_rows
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
from dovetail.targets.xnnpack.operators.registry import OPERATORS, Call, Operator, Tensor, torch

# Importing them fills the registry.
_REGISTERED = (activation, arithmetic, layout, linear, norm, pool, reduce, repeat, resize)
# The submodule of a node is named by this and the node's number; the name survives lowering and identifies the node.
STEP = "step"
# The module itself quantizes and dequantizes, so these two pass their input through.
_QUANTIZE, _DEQUANTIZE = Operator(lambda call: lambda x, *_: x), Operator(lambda call: lambda x, *_: x)
_QPARAMS_INPUTS = (1, 2)
_INDEXED = ("Gather", "GatherElements", "ScatterElements")


@dataclass(frozen=True, slots=True)
class _Operand:
    """Where an input comes from: a value or a buffer; and its quantization parameters if it is quantized."""

    value: str = ""
    buffer: str = ""
    params: QParams | None = None


def input_names(model: ir.Model) -> list[str]:
    """The names of a graph's inputs, in the order of the module's arguments."""
    return [str(value.name) for value in model.graph.inputs]


def output_names(model: ir.Model) -> list[str]:
    """The names of a graph's outputs, in the order in which the module returns them."""
    return [str(value.name) for value in model.graph.outputs]


def build_module(model: ir.Model, operators: Mapping[str, Operator] = OPERATORS) -> Any:
    """Build a torch module that computes what the graph computes; an operator without a mapping is an error."""
    steps, names = [], {}
    for number, node in enumerate(executed(model)):
        names[f"{STEP}{number}"] = node
        steps.append(_step(node, operators))

    class Planned(torch.nn.Module):  # type: ignore[misc]
        """Runs the steps in graph order."""

        def __init__(self) -> None:
            super().__init__()
            for name, (step, _) in zip(names, steps, strict=True):
                self.add_module(name, step)

        def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
            values = dict(zip(input_names(model), inputs, strict=True))
            for (name, node), (_, operands) in zip(names.items(), steps, strict=True):
                arguments = [values[operand.value] for operand in operands if operand is not None and operand.value]
                result = getattr(self, name)(*arguments)
                outputs = result if isinstance(result, tuple | list) else (result,)
                if any(value.name for value in node.outputs[len(outputs) :]):
                    raise Call(node, {}).unsupported(f"only its first {len(outputs)} outputs are supported")
                values.update(zip((str(value.name) for value in node.outputs), outputs, strict=False))
            return tuple(values[name] for name in output_names(model))

    return Planned().eval()


def known_operators() -> frozenset[str]:
    """The ONNX operators that have a mapping to torch."""
    return frozenset(OPERATORS)


def executed(model: ir.Model) -> list[ir.Node]:
    """The nodes that the module runs, in order: all but constants and the dequantizes that consumers run themselves."""
    outputs = set(model.graph.outputs)
    return [node for node in model.graph if not _is_run_by_consumers(node) or node.outputs[0] in outputs]


def _is_run_by_consumers(node: ir.Node) -> bool:
    return is_dequantize(node) or (is_op(node, "Constant") and constant_of(node.outputs[0]) is not None)


def _step(node: ir.Node, operators: Mapping[str, Operator]) -> tuple[Any, list[_Operand | None]]:
    """The submodule of one node, with its constants as buffers, and where its inputs come from."""
    mapping = _mapping(node, operators)
    constants = {
        index: array
        for index in range(len(node.inputs))
        if (array := constant_of(node.inputs[index])) is not None and _reads_constant(node, mapping, index)
    }
    for index in mapping.constants:
        if index < len(node.inputs) and node.inputs[index] is not None and index not in constants:
            raise InputError(f"node {node.name!r} ({node.op_type}): input {index} must be a constant")
    buffers: dict[str, Array] = {}
    operands: list[_Operand | None] = []
    for index in range(len(node.inputs)):
        absent = node.inputs[index] is None or index in mapping.constants
        operands.append(None if absent else _operand(node, index, buffers))
    return _module(mapping.build(Call(node, constants)), node, operands, buffers), operands


def _mapping(node: ir.Node, operators: Mapping[str, Operator]) -> Operator:
    if is_quantize(node):
        return Operator(_QUANTIZE.build, _QPARAMS_INPUTS)
    if is_dequantize(node):
        return Operator(_DEQUANTIZE.build, _QPARAMS_INPUTS)
    if is_rows(node):
        return Operator(lambda call: _dynamic_rows)
    mapping = operators.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if mapping is None:
        raise InputError(f"node {node.name!r} uses the operator {node.op_type!r}, which has no mapping to torch")
    return mapping


def _reads_constant(node: ir.Node, mapping: Operator, index: int) -> bool:
    """Whether a mapping reads a constant input as an array: where it must, and indices, which may be a range."""
    return index in mapping.constants or (node.op_type in _INDEXED and index == 1)


def _operand(node: ir.Node, index: int, buffers: dict[str, Array]) -> _Operand:
    value = node.inputs[index]
    if value is None:
        raise TypeError(f"{node.name!r} has no input {index}")
    producer = value.producer()
    params = None
    if is_dequantize(node) and index == 0:
        params = qparams_of(node)
    elif producer is not None and is_dequantize(producer) and producer.inputs[0] is not None:
        value, params = producer.inputs[0], qparams_of(producer)
    array = constant_of(value)
    if array is None:
        return _Operand(value=str(value.name), params=params)
    if params is not None and params.dtype is DType.S32:
        array, params = dequantize(array, params), None
    if index == 1 and _is_linear(node, array):
        array, params = _rows_first(node, array, params)
    name = f"input{index}"
    buffers[name] = array
    if params is not None and params.axis is not None:
        buffers[f"{name}_scale"] = params.scale
        buffers[f"{name}_zero_point"] = params.zero_point.astype(np.int64)
    return _Operand(buffer=name, params=params)


def _is_linear(node: ir.Node, array: Array) -> bool:
    return node.op_type in ("MatMul", "Gemm") and array.ndim == 2


def _rows_first(node: ir.Node, array: Array, params: QParams | None) -> tuple[Array, QParams | None]:
    """A linear layer's weight as [outputs, inputs]."""
    if attribute(node, "transB", 0):
        return array, params
    if params is not None and params.axis is not None:
        params = QParams(params.encoding, params.scale, params.zero_point, 1 - params.axis)
    return np.ascontiguousarray(array.T), params


def _module(function: Any, node: ir.Node, operands: Sequence[_Operand | None], buffers: dict[str, Array]) -> Any:
    output_params = qparams_of(node) if is_quantize(node) else None

    class Step(torch.nn.Module):  # type: ignore[misc]
        """One node."""

        def __init__(self) -> None:
            super().__init__()
            for name, array in buffers.items():
                self.register_buffer(name, torch.from_numpy(np.array(array)))

        def forward(self, *inputs: Tensor) -> Any:
            values = iter(inputs)
            arguments = [None if operand is None else self._read(operand, values) for operand in operands]
            try:
                result = function(*arguments)
            except (IndexError, RuntimeError, TypeError, ValueError) as error:
                raise Call(node, {}).unsupported(f"torch fails with: {' '.join(str(error).split())[:300]}") from error
            return result if output_params is None else _quantized(result, output_params)

        def _read(self, operand: _Operand, values: Any) -> Tensor:
            value = next(values) if operand.value else getattr(self, operand.buffer)
            if operand.params is None:
                return value
            if operand.params.axis is None:
                return _dequantized(value, operand.params)
            scale, zero_point = (getattr(self, f"{operand.buffer}_{name}") for name in ("scale", "zero_point"))
            return _dequantized_channels(value, operand.params, scale, zero_point)

    return Step()


def _grid(params: QParams) -> tuple[int, int, Any]:
    grid = params.dtype.grid
    return grid.low, grid.high, getattr(torch, str(params.dtype))


def _quantized(x: Tensor, params: QParams) -> Tensor:
    arguments = float(params.scale), int(params.zero_point), *_grid(params)
    return torch.ops.quantized_decomposed.quantize_per_tensor.default(x, *arguments)


def _dequantized(x: Tensor, params: QParams) -> Tensor:
    arguments = float(params.scale), int(params.zero_point), *_grid(params)
    return torch.ops.quantized_decomposed.dequantize_per_tensor.default(x, *arguments)


def _dynamic_rows(x: Tensor) -> Tensor:
    """Quantize every row to int8 with its own qparams, and dequantize it."""
    ops, grid = torch.ops.quantized_decomposed, (-128, 127, torch.int8)
    scale, zero_point = ops.choose_qparams_per_token_asymmetric.default(x, torch.int8)
    quantized = ops.quantize_per_token.default(x, scale, zero_point, *grid)
    return ops.dequantize_per_token.default(quantized, scale, zero_point, *grid, torch.float32)


def _dequantized_channels(x: Tensor, params: QParams, scale: Tensor, zero_point: Tensor) -> Tensor:
    return torch.ops.quantized_decomposed.dequantize_per_channel.default(
        x, scale, zero_point, params.axis, *_grid(params)
    )
