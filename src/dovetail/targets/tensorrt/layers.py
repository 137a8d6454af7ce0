"""The builder's layer list, read: every layer with its types and the ONNX nodes that it does the work of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dovetail.encoding import DType

# The words of the list -> ours.
DTYPES = {"FP8": DType.F8E4M3, "Int8": DType.S8, "Half": DType.F16, "Float": DType.F32}
WORDS = {dtype: word for word, dtype in DTYPES.items()}
_LAYER = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<kind>\w+), Inputs: \[(?P<inputs>.*?)\]"
    r"(?:, Constants: \[(?P<constants>.*?)\])?, Outputs: \[(?P<outputs>.*?)\], TacticName: .*?, StreamId: -?\d+"
    r"(?:, EventId: -?\d+)?"
    r"(?:, Metadata: ?(?P<metadata>.*))?"
)
_TENSOR = re.compile(r"\{ Name: .*?, Dimensions: \[(?P<shape>[-\d,]*)\].*?Datatype: (?P<dtype>\w+)")
_NODE = re.compile(r"\[ONNX Layer: (.*)\]", re.DOTALL)
_BETWEEN_NODES = "\x1f"
# A fused attention, and layers that multiply matrices; what is generated computes element by element.
_ATTENTION = "_mha"
_PRODUCTS = ("gemm", "correlation", "runtime_fusion")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand of a layer: its type in the builder's word, and its shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an engine; ``nodes`` are the names of the ONNX nodes that are in it."""

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    nodes: frozenset[str]

    @property
    def is_attention(self) -> bool:
        return _ATTENTION in self.name

    @property
    def is_product(self) -> bool:
        return self.is_attention or self.kind in _PRODUCTS

    @property
    def types(self) -> str:
        """``FP8 -> Half``, as far as its data goes."""
        inside = "/".join(dict.fromkeys(t.dtype for t in self.inputs)) or "constants"
        return f"{inside} -> {'/'.join(dict.fromkeys(t.dtype for t in self.outputs))}"


class UnreadableError(ValueError):
    """A line of the list that is not of the form known."""


def parse_layers(text: str) -> tuple[Layer, ...]:
    """The layers of a list; a line of another form is an error that quotes it."""
    lines = text.strip().splitlines()
    if not lines or lines[0].strip() != "Layers:":
        raise UnreadableError("the builder printed no layer list")
    end = next((number for number, line in enumerate(lines) if not line.strip()), len(lines))
    return tuple(_layer(line.strip()) for line in lines[1:end])


def _layer(line: str) -> Layer:
    found = _LAYER.fullmatch(line)
    if found is None:
        raise UnreadableError(f"line {line[:200]!r}")
    tensors = {key: _tensors(found[key] or "", line) for key in ("inputs", "constants", "outputs")}
    if _ATTENTION in found["name"] and not tensors["inputs"]:
        raise UnreadableError(f"an attention without inputs: line {line[:200]!r}")
    named = (_NODE.fullmatch(one) for one in (found["metadata"] or "").split(_BETWEEN_NODES))
    return Layer(found["name"], found["kind"], nodes=frozenset(one[1] for one in named if one is not None), **tensors)


def _tensors(text: str, line: str) -> tuple[Tensor, ...]:
    found = tuple(
        Tensor(one["dtype"], tuple(int(size) for size in one["shape"].split(",") if size))
        for one in _TENSOR.finditer(text)
    )
    if len(found) != text.count("{ Name: "):
        raise UnreadableError(f"line {line[:200]!r}")
    return found
