"""Builds an ONNX graph node by node; every tensor is known by its name and shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dovetail.encoding import Array
from dovetail.sweep.draw import Draw

OPSET, IR_VERSION = 21, 10


@dataclass(frozen=True, slots=True)
class Tensor:
    """A float tensor of the graph."""

    name: str
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        """The channels of an image-like tensor [N, C, H, W] or of tokens [N, T, C]."""
        return self.shape[1] if len(self.shape) == 4 else self.shape[-1]


Operand = Tensor | Array | None


class GraphBuilder:
    """A graph under construction; ``draw`` makes the random choices of the blocks."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[Tensor] = []
        self._computed: list[Tensor] = []

    @property
    def node_count(self) -> int:
        """How many nodes there are so far."""
        return len(self._nodes)

    def input(self, *shape: int) -> Tensor:
        """A graph input."""
        value = Tensor(f"input{len(self._inputs)}", shape)
        self._inputs.append(value)
        return value

    def op(self, op_type: str, *operands: Operand, shape: tuple[int, ...] | None = None, **attributes: Any) -> Tensor:
        """A node with one output; its shape is that of the operands broadcast, unless another one is given."""
        known = shape or np.broadcast_shapes(*(operand.shape for operand in operands if operand is not None))
        (value,) = self._add(op_type, operands, [known], attributes)
        return value

    def split(self, x: Tensor, axis: int, sizes: tuple[int, ...]) -> list[Tensor]:
        """A Split into parts of these sizes."""
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        return self._add("Split", (x, np.array(sizes)), shapes, {"axis": axis})

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        """A Reshape to a static shape."""
        return self.op("Reshape", x, np.array(shape), shape=shape)

    def transpose(self, x: Tensor, *perm: int) -> Tensor:
        """A Transpose."""
        return self.op("Transpose", x, shape=tuple(x.shape[axis] for axis in perm), perm=list(perm))

    def concat(self, parts: list[Tensor], axis: int) -> Tensor:
        """A Concat."""
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.op("Concat", *parts, shape=tuple(shape), axis=axis)

    def reduce(self, op_type: str, x: Tensor, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
        """A reduction over axes that are not negative."""
        kept = (1 if axis in axes else size for axis, size in enumerate(x.shape) if keepdims or axis not in axes)
        return self.op(op_type, x, np.array(axes), shape=tuple(kept), keepdims=int(keepdims))

    def model(self, outputs: list[Tensor]) -> onnx.ModelProto:
        """The finished model, with the shape of every tensor, without nodes that no output depends on."""
        needed = {value.name for value in outputs}
        nodes: list[onnx.NodeProto] = []
        for node in reversed(self._nodes):
            if needed & set(node.output):
                needed.update(node.input)
                nodes.insert(0, node)
        between = [value for value in self._computed if value.name in needed and value not in outputs]
        graph = helper.make_graph(
            nodes,
            "sweep",
            [_value_info(value) for value in self._inputs if value.name in needed],
            [_value_info(value) for value in outputs],
            [constant for constant in self._constants if constant.name in needed],
            value_info=[_value_info(value) for value in between],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)

    def _add(
        self, op_type: str, operands: tuple[Operand, ...], shapes: list[tuple[int, ...]], attributes: dict[str, Any]
    ) -> list[Tensor]:
        name = f"{op_type.lower()}{len(self._nodes)}"
        suffixes = [""] if len(shapes) == 1 else [f"_{index}" for index in range(len(shapes))]
        values = [Tensor(name + suffix, tuple(shape)) for suffix, shape in zip(suffixes, shapes, strict=True)]
        inputs = [self._named(operand, f"{name}_c{index}") for index, operand in enumerate(operands)]
        outputs = [value.name for value in values]
        self._computed += values
        self._nodes.append(helper.make_node(op_type, inputs, outputs, name=f"node_{name}", **attributes))
        return values

    def _named(self, operand: Operand, name: str) -> str:
        if operand is None:
            return ""
        if isinstance(operand, Tensor):
            return operand.name
        self._constants.append(numpy_helper.from_array(np.asarray(operand), name))
        return name


def _value_info(value: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, TensorProto.FLOAT, value.shape)


def scalar(value: float) -> Array:
    """A float32 constant."""
    return np.array(value, np.float32)
