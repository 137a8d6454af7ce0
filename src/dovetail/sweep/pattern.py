"""The pattern of a small graph in words: ``Conv(5x5, s2) -> Sigmoid -> Mul(Conv, .)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.edit import attribute, constant_of, shape_of

# Attributes that choose another computation; all other attributes are sizes, which ``facts_of`` lists.
_MODES = {
    "Resize": ("mode", "coordinate_transformation_mode", "nearest_mode"),
    "Pad": ("mode",),
    "Gelu": ("approximate",),
    "DepthToSpace": ("mode",),
    "AveragePool": ("count_include_pad",),
}
# The order of their operands does not matter, so it is not part of the pattern.
_COMMUTATIVE = ("Add", "Max", "Min", "Mul")
_CONVOLUTIONS = ("Conv", "ConvTranspose")


def pattern_of(model: ir.Model) -> str:
    """The operators in graph order, each with its mode and those of its operands that are not the one before it."""
    words: list[str] = []
    previous: ir.Node | None = None
    for node in model.graph:
        words.append(f"{_operator(node)}{_operands(node, previous)}")
        previous = node
    return " -> ".join(words)


def _operator(node: ir.Node) -> str:
    values = [(name, attribute(node, name, "")) for name in _MODES.get(node.op_type, ())]
    details = [value if isinstance(value, str) else f"{name}={value}" for name, value in values]
    if node.op_type in _CONVOLUTIONS and (groups := int(attribute(node, "group", 1))) > 1:
        channels = (shape_of(node.inputs[0]) or (0, 0))[1]
        details.append("depthwise" if groups == channels else "grouped")
    words = [word for word in details if word]
    return f"{node.op_type}[{', '.join(words)}]" if words else node.op_type


def _operands(node: ir.Node, previous: ir.Node | None) -> str:
    """The operands in parentheses, unless the only one is the result of the node before, or the first node's input."""
    names = [_operand(value, previous) for value in node.inputs if value is not None]
    computed = [name for name in names if name != _CONSTANT]
    if node.op_type in _COMMUTATIVE:
        computed.sort(key=lambda name: (name == ".", name))
    if computed == ["."] or (previous is None and computed == [_INPUT]):
        return ""
    return f"({', '.join(computed)})"


_CONSTANT, _INPUT = "constant", "x"


def _operand(value: ir.Value, previous: ir.Node | None) -> str:
    producer = value.producer()
    if constant_of(value) is not None:
        return _CONSTANT
    if producer is None:
        return _INPUT
    return "." if producer is previous else producer.op_type


def facts_of(model: ir.Model) -> dict[str, str]:
    """Sizes that a failure may depend on: those of the first computed tensor, and of the first convolution."""
    facts: dict[str, str] = {}
    first = next(iter(model.graph)).outputs[0]
    sizes = shape_of(first) or ()
    names = {4: ("batch", "channels", "height", "width"), 3: ("batch", "tokens", "channels")}.get(len(sizes))
    facts |= dict(zip(names or [f"size{axis}" for axis in range(len(sizes))], map(str, sizes), strict=True))
    for node in model.graph:
        if node.op_type in _CONVOLUTIONS or node.op_type.endswith("Pool"):
            facts |= _window(node)
            break
    return facts


def _window(node: ir.Node) -> dict[str, str]:
    values = {name: list(attribute(node, name, [])) for name in ("kernel_shape", "strides", "dilations", "pads")}
    facts = {name: "x".join(map(str, value)) for name, value in values.items() if value}
    weights = constant_of(node.inputs[1]) if node.op_type in _CONVOLUTIONS else None
    if weights is None:
        return facts
    return {**facts, "kernel_shape": "x".join(map(str, weights.shape[2:])), "least channel": _least_channel(weights)}


def _least_channel(weights: Array) -> str:
    """The magnitude of the output channel with the smallest weights, relative to the largest: a power of ten."""
    largest = np.abs(weights).reshape(len(weights), -1).max(axis=1)
    share = float(largest.min() / largest.max()) if largest.max() > 0 else 0.0
    return f"1e{round(np.log10(share))}" if share > 0 else "0"


def occurrences(model: ir.Model, pattern: ir.Model, limit: int = 4) -> list[tuple[int, ...]]:
    """Sets of nodes of a model, by index, that are connected like those of a pattern; only operator types count."""
    nodes, wanted = list(model.graph), list(pattern.graph)
    matches: list[tuple[int, ...]] = []

    def extend(chosen: tuple[int, ...]) -> None:
        if len(matches) == limit:
            return
        if len(chosen) == len(wanted):
            matches.append(chosen)
            return
        for index in range(chosen[-1] + 1 if chosen else 0, len(nodes)):
            if _fits(nodes, wanted, (*chosen, index)):
                extend((*chosen, index))

    extend(())
    return matches


def _fits(nodes: Sequence[ir.Node], wanted: Sequence[ir.Node], chosen: tuple[int, ...]) -> bool:
    """Whether the last of the chosen nodes reads the same of the earlier ones as its counterpart in the pattern."""
    node, like = nodes[chosen[-1]], wanted[len(chosen) - 1]
    earlier = [nodes[index] for index in chosen[:-1]]
    return node.op_type == like.op_type and _reads(node, earlier) == _reads(like, wanted[: len(chosen) - 1])


def _reads(node: ir.Node, earlier: Iterable[ir.Node]) -> frozenset[int]:
    producers = {value.producer() for value in node.inputs if value is not None}
    return frozenset(index for index, other in enumerate(earlier) if other in producers)
