"""The registry of mappings from ONNX operators to torch functions, and the view of a node that a mapping gets."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.errors import InputError
from dovetail.model.edit import attribute, shape_of
from dovetail.model.slices import MOST_AXES as MOST_AXES

# A torch tensor; torch may not be installed, so its types are not used.
Tensor = Any
Function = Callable[..., Any]


class _Torch:
    """The torch package, imported when one of its functions is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


torch: Any = _Torch()


@dataclass(frozen=True, slots=True)
class Call:
    """One node as its mapping sees it: attributes, shapes, and the values of constant inputs."""

    node: ir.Node
    constants: Mapping[int, Array]

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute, or its default."""
        return attribute(self.node, name, default)

    def constant(self, index: int) -> Array | None:
        """A constant input as an array; None if the node does not have it."""
        return self.constants.get(index)

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The static shape of an input."""
        return self._static(self.node.inputs[index])

    def output_shape(self, index: int = 0) -> tuple[int, ...]:
        """The static shape of an output."""
        return self._static(self.node.outputs[index])

    def axis(self, default: int) -> int:
        """The attribute ``axis``, with a negative value counted from the last axis."""
        axis = int(self.attribute("axis", default))
        return axis + len(self.shape()) if axis < 0 else axis

    def opset(self) -> int:
        """The version of ONNX that defines the node."""
        graph = self.node.graph
        if graph is None:
            raise self.unsupported("it belongs to no graph")
        return graph.opset_imports[""]

    def is_float(self) -> bool:
        """Whether the first input is float32, which XNNPACK computes in."""
        value = self.node.inputs[0]
        return value is not None and value.dtype is ir.DataType.FLOAT

    def unsupported(self, why: str) -> InputError:
        """The error that says why this node cannot be mapped to torch."""
        return InputError(f"node {self.node.name!r} ({self.node.op_type}): {why}")

    def _static(self, value: ir.Value | None) -> tuple[int, ...]:
        shape = shape_of(value)
        if shape is None:
            raise self.unsupported("its shapes are not static")
        return shape


@dataclass(frozen=True, slots=True)
class Operator:
    """How a node of one operator becomes a torch function; ``constants``: the inputs that must be constants."""

    build: Callable[[Call], Function]
    constants: tuple[int, ...] = ()


OPERATORS: dict[str, Operator] = {}


def operator(*names: str, constants: tuple[int, ...] = ()) -> Callable[[Callable[[Call], Function]], Any]:
    """Register a mapping; it is called once per node and returns the function that runs the node.

    The function gets one argument per input, None if the input is absent or among ``constants``.
    """

    def register(build: Callable[[Call], Function]) -> Callable[[Call], Function]:
        for name in names:
            OPERATORS[name] = Operator(build, constants)
        return build

    return register


def constant_like(call: Call, value: float) -> Tensor:
    """A constant with the rank of the first input: XNNPACK would transpose an image twice to add a scalar to it."""
    return torch.full((1,) * len(call.shape()), value)
