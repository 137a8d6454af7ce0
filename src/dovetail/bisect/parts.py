"""Parts of a model, as models with real inputs: of a float graph, or of a graph that another tool quantized."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.encoding import Array
from dovetail.model.edit import constant_of
from dovetail.model.memory import require_memory_together
from dovetail.model.origin import nodes_of
from dovetail.model.read import Shapes, read
from dovetail.model.session import Mode, open_session, run_session
from dovetail.model.subset import subset_of
from dovetail.model.view import view_of
from dovetail.model.write import write
from dovetail.passes.fold_constants import fold_constants
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.invert import is_quantized
from dovetail.qdq.params import is_dequantize, is_quantize


@dataclass(frozen=True, slots=True, eq=False)
class DividedModel:
    """A model whose nodes can be taken apart.

    ``elements``: the indices of the nodes that are looked for; a Q or DQ node belongs to its neighbors. ``values``: of
    every tensor that can be the input of a part, one sample per row.
    """

    model: ir.Model
    quantized: bool
    elements: tuple[int, ...]
    values: Mapping[str, Array]

    def part(self, elements: Iterable[int]) -> tuple[ir.Model, dict[str, Array]]:
        """The model of these nodes, and the samples of its inputs."""
        nodes = set(elements)
        part = subset_of(self.model, self._with_conversions(nodes) if self.quantized else nodes)
        return part, {str(value.name): self.values[str(value.name)] for value in part.graph.inputs}

    def connected(self, elements: Sequence[int]) -> list[tuple[int, ...]]:
        """The connected parts of these nodes: those that share a tensor, which is no weight."""
        graph = list(self.model.graph)
        groups: list[tuple[set[ir.Value], list[int]]] = []
        for index in elements:
            nodes = [graph[i] for i in (self._with_conversions({index}) if self.quantized else {index})]
            values = [value for node in nodes for value in (*node.inputs, *node.outputs) if value is not None]
            touched = {value for value in values if constant_of(value) is None}
            joined = [index]
            for group in [group for group in groups if group[0] & touched]:
                groups.remove(group)
                touched |= group[0]
                joined += group[1]
            groups.append((touched, joined))
        return sorted(tuple(sorted(indices)) for _, indices in groups)

    def described(self, elements: Iterable[int]) -> list[tuple[str, str]]:
        """The operator of each node, and its name in the user's file."""
        graph = list(self.model.graph)
        return [(graph[i].op_type, ", ".join(nodes_of(graph[i])) or graph[i].name or "") for i in elements]

    def _with_conversions(self, nodes: Collection[int]) -> set[int]:
        """These nodes, with the Q and DQ nodes before and after them: both of each pair."""
        graph = list(self.model.graph)
        number = {node: index for index, node in enumerate(graph)}
        chosen = set(nodes)
        for index in nodes:
            for value in graph[index].inputs:
                chosen |= {number[node] for node in _before(value)}
            for value in graph[index].outputs:
                chosen |= {number[node] for node in _after(value)}
        return chosen


def divided(path: Path, shapes: Shapes, samples: Sequence[Sample]) -> DividedModel:
    """Read a model, and compute all its tensors for these samples."""
    model = read(path, shapes)
    quantized = is_quantized(model)
    infer_shapes(model)
    while not quantized and fold_constants(model).changed:  # sizes that are computed are no part of what is looked for
        infer_shapes(model)
    is_conversion = [is_quantize(node) or is_dequantize(node) for node in model.graph]
    elements = tuple(index for index, conversion in enumerate(is_conversion) if not conversion)
    return DividedModel(model, quantized, elements, _values(model, samples, Mode.EXACT if quantized else Mode.FLOAT))


def _values(model: ir.Model, samples: Sequence[Sample], mode: Mode) -> dict[str, Array]:
    """The inputs, and every tensor that a node computes."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    known = {value.name for value in model.graph.outputs}
    computed = [value for node in model.graph for value in node.outputs if value.uses() and value.name not in known]
    require_memory_together(computed)
    with tempfile.TemporaryDirectory(prefix="dovetail-bisect-") as name:
        path = write(view_of(model, outputs=(*model.graph.outputs, *computed)), Path(name) / "all.onnx")[0]
        session = open_session(path, mode)
        rows = [{**run_session(session, sample), **{key: sample[key] for key in inputs}} for sample in samples]
    return {key: np.stack([row[key] for row in rows]) for key in rows[0] if len({row[key].shape for row in rows}) == 1}


def _before(value: ir.Value | None) -> list[ir.Node]:
    """The DQ node that makes a tensor, and the Q node before it."""
    found: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None and (is_dequantize(node) or is_quantize(node)):
        found.append(node)
        if is_quantize(node):
            break
        value = node.inputs[0]
    return found


def _after(value: ir.Value) -> list[ir.Node]:
    """The Q nodes that read a tensor, and the DQ nodes after them."""
    quantizing = [node for node in value.consumers() if is_quantize(node)]
    return [*quantizing, *(node for q in quantizing for node in q.outputs[0].consumers() if is_dequantize(node))]
