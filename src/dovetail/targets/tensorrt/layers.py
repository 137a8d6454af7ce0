"""Parse the builder's layer list: every layer with its types and the ONNX nodes that it computes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dovetail.encoding import DType

# Type names in the layer list -> our dtypes, and back.
DTYPES = {"FP8": DType.F8E4M3, "Int8": DType.S8, "Half": DType.F16, "Float": DType.F32}
TYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LAYER = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<kind>\w+), Inputs: \[(?P<inputs>.*?)\]"
    r"(?:, Constants: \[(?P<constants>.*?)\])?, Outputs: \[(?P<outputs>.*?)\], TacticName: .*?, StreamId: -?\d+"
    r"(?:, EventId: -?\d+)?"
    r"(?:, JumpTarget\w*: [^,]*)*"
    r"(?:, Metadata: ?(?P<metadata>.*))?"
)
_TENSOR = re.compile(r"\{ Name: .*?, Dimensions: \[(?P<shape>[-\d,]*)\].*?Datatype: (?P<dtype>\w+)")
# A node that the builder replaced has a suffix: a 1 x 1 Conv over one place is ``__gemm_from_conv1x1``.
_NODE = re.compile(r"\[ONNX Layer: (.*)\](?:__\w+)?", re.DOTALL)
_BETWEEN_NODES = "\x1f"
# Part of the name of a fused attention layer, and the kinds of layers that run a matrix operation. The layers that the
# builder generates itself compute element by element.
_ATTENTION = "_mha"
_MATRIX_KINDS = ("gemm", "correlation", "deconv", "runtime_fusion")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand of a layer: its type as the builder names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an engine; ``nodes`` are the names of the ONNX nodes that it computes."""

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
    def is_matrix_op(self) -> bool:
        return self.is_attention or self.kind in _MATRIX_KINDS

    @property
    def types(self) -> str:
        """The types of inputs and outputs, as in ``FP8 -> Half``."""
        inputs = "/".join(dict.fromkeys(tensor.dtype for tensor in self.inputs)) or "constants"
        return f"{inputs} -> {'/'.join(dict.fromkeys(tensor.dtype for tensor in self.outputs))}"


class UnreadableError(ValueError):
    """A layer list, or a line of it, that does not have the expected format."""


def parse_layers(text: str) -> tuple[Layer, ...]:
    """Parse a layer list; a line in an unknown format raises an error that quotes it."""
    lines = text.strip().splitlines()
    if not lines or lines[0].strip() != "Layers:":
        raise UnreadableError("the builder printed no layer list")
    end = next((number for number, line in enumerate(lines) if not line.strip()), len(lines))
    return tuple(_layer(line.strip()) for line in lines[1:end])


def _layer(line: str) -> Layer:
    match = _LAYER.fullmatch(line)
    if match is None:
        raise UnreadableError(f"unknown format in line {line[:200]!r}")
    tensors = {key: _tensors(match[key] or "", line) for key in ("inputs", "constants", "outputs")}
    if _ATTENTION in match["name"] and not tensors["inputs"]:
        raise UnreadableError(f"attention layer without inputs in line {line[:200]!r}")
    nodes = (_NODE.fullmatch(entry) for entry in (match["metadata"] or "").split(_BETWEEN_NODES))
    return Layer(
        match["name"], match["kind"], nodes=frozenset(node[1] for node in nodes if node is not None), **tensors
    )


def _tensors(text: str, line: str) -> tuple[Tensor, ...]:
    tensors = tuple(
        Tensor(match["dtype"], tuple(int(size) for size in match["shape"].split(",") if size))
        for match in _TENSOR.finditer(text)
    )
    if len(tensors) != text.count("{ Name: "):
        raise UnreadableError(f"unknown format in line {line[:200]!r}")
    return tensors
