"""The planned ONNX graph as a torch module that runs it node by node: what ``torch.export`` flattens.

What the lowering asks for, each found by failing (executorch 1.5.1): integers are read back once per reader, or
"Invalid partition, found dependency cycles"; the zero points of a weight are a buffer; a linear layer's weight is
[outputs, inputs], or the product falls out of int8; its bias is in float, and XNNPACK makes it int32.
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
from dovetail.targets.xnnpack.operators import arithmetic, layout, linear, norm, reduce, repeat
from dovetail.targets.xnnpack.operators.registry import OPERATORS, Call, Operator, Tensor, torch

_REGISTERED = (arithmetic, layout, linear, norm, reduce, repeat)  # importing them fills the registry
# The module of a node is called this and its number; the name survives lowering and leads back to the node.
STEP = "step"
_QUANTIZE, _DEQUANTIZE = Operator(lambda call: lambda x, *_: x), Operator(lambda call: lambda x, *_: x)
_NUMBERS = (1, 2)
_INDEXED = ("Gather", "GatherElements", "ScatterElements")


@dataclass(frozen=True, slots=True)
class _Operand:
    """Where an input comes from: the value to read, or the buffer; and its numbers, where it is stored in integers."""

    value: str = ""
    buffer: str = ""
    params: QParams | None = None


def input_names(model: ir.Model) -> list[str]:
    """The inputs of a graph in the order in which the module takes them."""
    return [str(value.name) for value in model.graph.inputs]


def output_names(model: ir.Model) -> list[str]:
    """The outputs of a graph in the order in which the module gives them."""
    return [str(value.name) for value in model.graph.outputs]


def build_module(model: ir.Model, operators: Mapping[str, Operator] = OPERATORS) -> Any:
    """A torch module that computes what the graph computes; an operator without a mapping is refused by name."""
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
                given = [values[operand.value] for operand in operands if operand is not None and operand.value]
                outputs = getattr(self, name)(*given)
                several = outputs if isinstance(outputs, tuple | list) else (outputs,)
                if any(value.name for value in node.outputs[len(several) :]):
                    raise Call(node, {}).refuse(f"only its first {len(several)} outputs have a form here")
                values.update(zip((str(value.name) for value in node.outputs), several, strict=False))
            return tuple(values[name] for name in output_names(model))

    return Planned().eval()


def known_operators() -> frozenset[str]:
    """The ONNX operators that have a mapping."""
    return frozenset(OPERATORS)


def executed(model: ir.Model) -> list[ir.Node]:
    """The nodes that the module runs, in order: all but constants, and those that read integers back for others."""
    outputs = set(model.graph.outputs)
    return [node for node in model.graph if not _is_read_by_others(node) or node.outputs[0] in outputs]


def _is_read_by_others(node: ir.Node) -> bool:
    return is_dequantize(node) or (is_op(node, "Constant") and constant_of(node.outputs[0]) is not None)


def _step(node: ir.Node, operators: Mapping[str, Operator]) -> tuple[Any, list[_Operand | None]]:
    """The module of one node, with its constants as buffers, and where its inputs come from."""
    mapping = _mapping(node, operators)
    numbers = {
        index: array
        for index in range(len(node.inputs))
        if (array := constant_of(node.inputs[index])) is not None and _takes_number(node, mapping, index)
    }
    for index in mapping.numbers:
        if index < len(node.inputs) and node.inputs[index] is not None and index not in numbers:
            raise InputError(f"node {node.name!r} ({node.op_type}): its input {index} is not a constant")
    buffers: dict[str, Array] = {}
    operands: list[_Operand | None] = []
    for index in range(len(node.inputs)):
        absent = node.inputs[index] is None or index in mapping.numbers
        operands.append(None if absent else _operand(node, index, buffers))
    return _module(mapping.build(Call(node, numbers)), node, operands, buffers), operands


def _mapping(node: ir.Node, operators: Mapping[str, Operator]) -> Operator:
    if is_quantize(node):
        return Operator(_QUANTIZE.build, _NUMBERS)
    if is_dequantize(node):
        return Operator(_DEQUANTIZE.build, _NUMBERS)
    if is_rows(node):
        return Operator(lambda call: _dynamic_rows)
    found = operators.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if found is None:
        raise InputError(f"node {node.name!r} uses the operator {node.op_type!r}, which has no form in torch here")
    return found


def _takes_number(node: ir.Node, mapping: Operator, index: int) -> bool:
    """Whether a mapping looks at a constant: where it must, and at indices, which may be a plain range."""
    return index in mapping.numbers or (node.op_type in _INDEXED and index == 1)


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
    stored = qparams_of(node) if is_quantize(node) else None

    class Step(torch.nn.Module):  # type: ignore[misc]
        """One node."""

        def __init__(self) -> None:
            super().__init__()
            for name, array in buffers.items():
                self.register_buffer(name, torch.from_numpy(np.array(array)))

        def forward(self, *given: Tensor) -> Any:
            values = iter(given)
            arguments = [None if operand is None else self._read(operand, values) for operand in operands]
            try:
                result = function(*arguments)
            except (IndexError, RuntimeError, TypeError, ValueError) as error:
                raise Call(node, {}).refuse(f"torch says: {' '.join(str(error).split())[:300]}") from error
            return result if stored is None else _quantized(result, stored)

        def _read(self, operand: _Operand, values: Any) -> Tensor:
            value = next(values) if operand.value else getattr(self, operand.buffer)
            if operand.params is None:
                return value
            if operand.params.axis is None:
                return _dequantized(value, operand.params)
            scale, zero_point = (getattr(self, f"{operand.buffer}_{part}") for part in ("scale", "zero_point"))
            return _dequantized_channels(value, operand.params, scale, zero_point)

    return Step()


def _grid(params: QParams) -> tuple[int, int, Any]:
    grid = params.dtype.grid
    return grid.low, grid.high, getattr(torch, str(params.dtype))


def _quantized(x: Tensor, params: QParams) -> Tensor:
    numbers = float(params.scale), int(params.zero_point), *_grid(params)
    return torch.ops.quantized_decomposed.quantize_per_tensor.default(x, *numbers)


def _dequantized(x: Tensor, params: QParams) -> Tensor:
    numbers = float(params.scale), int(params.zero_point), *_grid(params)
    return torch.ops.quantized_decomposed.dequantize_per_tensor.default(x, *numbers)


def _dynamic_rows(x: Tensor) -> Tensor:
    """What comes back from storing every row in int8 with numbers of its own."""
    kit, grid = torch.ops.quantized_decomposed, (-128, 127, torch.int8)
    scale, zero_point = kit.choose_qparams_per_token_asymmetric.default(x, torch.int8)
    stored = kit.quantize_per_token.default(x, scale, zero_point, *grid)
    return kit.dequantize_per_token.default(stored, scale, zero_point, *grid, torch.float32)


def _dequantized_channels(x: Tensor, params: QParams, scale: Tensor, zero_point: Tensor) -> Tensor:
    return torch.ops.quantized_decomposed.dequantize_per_channel.default(
        x, scale, zero_point, params.axis, *_grid(params)
    )
