"""Which torch function an ONNX operator is: the registry, and what a mapping is told of its node."""

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

# A torch tensor; torch has no types that are known here.
Tensor = Any
Function = Callable[..., Any]


class _Torch:
    """The torch package, imported when a function of it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


torch: Any = _Torch()


@dataclass(frozen=True, slots=True)
class Call:
    """One node as its mapping sees it: attributes, shapes, and the inputs that it takes as plain numbers."""

    node: ir.Node
    numbers: Mapping[int, Array]

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute, or its default."""
        return attribute(self.node, name, default)

    def number(self, index: int) -> Array | None:
        """A constant input as an array; None where the node does not have it."""
        return self.numbers.get(index)

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The static shape of an input."""
        return self._static(self.node.inputs[index])

    def output(self, index: int = 0) -> tuple[int, ...]:
        """The static shape of an output."""
        return self._static(self.node.outputs[index])

    def axis(self, default: int) -> int:
        """The attribute ``axis``, counted from the front."""
        axis = int(self.attribute("axis", default))
        return axis + len(self.shape()) if axis < 0 else axis

    def is_float(self) -> bool:
        """Whether the first input is what XNNPACK computes in."""
        value = self.node.inputs[0]
        return value is not None and value.dtype is ir.DataType.FLOAT

    def refuse(self, why: str) -> InputError:
        """The error that says why this node cannot be mapped."""
        return InputError(f"node {self.node.name!r} ({self.node.op_type}): {why}")

    def _static(self, value: ir.Value | None) -> tuple[int, ...]:
        shape = shape_of(value)
        if shape is None:
            raise self.refuse("its shapes are not known")
        return shape


@dataclass(frozen=True, slots=True)
class Operator:
    """How a node of one operator becomes a function of its tensors; ``numbers``: inputs that must be constants."""

    build: Callable[[Call], Function]
    numbers: tuple[int, ...] = ()


OPERATORS: dict[str, Operator] = {}


def operator(*names: str, numbers: tuple[int, ...] = ()) -> Callable[[Callable[[Call], Function]], Any]:
    """Register a mapping; it is called once per node and gives the function that runs it.

    The function gets one argument per input, None where it is absent or given as numbers.
    """

    def register(build: Callable[[Call], Function]) -> Callable[[Call], Function]:
        for name in names:
            OPERATORS[name] = Operator(build, numbers)
        return build

    return register
