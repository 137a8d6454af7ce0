"""What the real HTP compiler does with every operator of a QDQ model, from its log and its dumped graphs.

An operator is a node of the QDQ model that is no Q, no DQ and no Constant. Its Q/DQ pairs say that it computes in
integers if all of its float activations, inputs and outputs, have one; otherwise they say float. It is *changed* if

- ``cpu``: ONNX Runtime places it on the CPU;
- ``refused``: the graph cannot be finalized, and the compiler names this operator as the reason;
- ``float``: its Q/DQ pairs say integers, and a QNN operator that it became reads or writes a float tensor;
- ``converted``: a QNN operator that it became reads an input after a Convert to another dtype;
- ``stored``: its output has another dtype, scale or zero point than its Q/DQ pair says;
- ``integers``: they say float, and the QNN operators that it became compute in integers;
- ``unrounded``: they say float, and the Q/DQ pair of its output is between float operators, where the compiler
  removes it.

An operator that was merged with others or removed, without one of these, is not changed, unless all operators that read
its float outputs are on the CPU: then it was merged there. One that depends on constants alone is folded.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.encoding import DType, Granularity, QParams
from dovetail.model.edit import constant_of, is_float, is_op
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.params import is_dequantize, is_quantize, qparams_of, use_onnx_domain
from dovetail.targets.qnn_htp.dump import MOVED, QnnNode, QnnTensor, load_graph
from dovetail.targets.qnn_htp.emitted_nodes import emitted_nodes
from dovetail.targets.qnn_htp.log import log_findings

_CONVERSIONS = ("Quantize", "Dequantize", "Convert")
_PLACED = re.compile(r"Node\(s\) placed on \[(\w+)\]")
_PLACED_NODE = re.compile(r"VerifyEachNodeIsAssignedToAnEp\]\s+(\w+) \((.*)\)$")
_CPU = "CPUExecutionProvider"
_ALL_ON_CPU = re.compile(rf"All nodes placed on \[{_CPU}\]")
_PAIR = ("QuantizeLinear", "DequantizeLinear")
_STATIC = 4
_SCALE_RTOL = 1e-5


@dataclass(frozen=True, slots=True)
class Operator:
    """A node of a QDQ model that is neither a Q nor a DQ.

    ``reads`` and ``writes``: its float activations by name, that of the quantized tensor where it has a Q/DQ pair, with
    the qparams of the pair, or None.
    """

    name: str
    op_type: str
    reads: Mapping[str, QParams | None]
    writes: Mapping[str, QParams | None]

    @property
    def in_integers(self) -> bool:
        """Whether its Q/DQ pairs say that it computes in integers."""
        activations = (*self.reads.values(), *self.writes.values())
        return bool(activations) and all(params is not None for params in activations)


@dataclass(frozen=True, slots=True)
class Changed:
    """What the compiler does with an operator other than its Q/DQ pairs say."""

    operator: Operator
    how: str
    detail: str = ""


def operators(path: Path) -> list[Operator]:
    """The operators of a QDQ model, in graph order."""
    model = ir.load(path)
    use_onnx_domain(model)
    infer_shapes(model)
    return [
        _operator(node)
        for node in model.graph
        if not is_quantize(node) and not is_dequantize(node) and not is_op(node, "Constant")
    ]


def _pair_names(path: Path) -> dict[str, str]:
    """The output of every Q by the name of the Q, under which ONNX Runtime keeps it where it moves the Q."""
    return {node.name or "": node.outputs[0].name or "" for node in ir.load(path).graph if is_quantize(node)}


def _operator(node: ir.Node) -> Operator:
    reads: dict[str, QParams | None] = {}
    for value in node.inputs:
        if value is None or constant_of(value) is not None:
            continue
        producer = value.producer()
        if producer is not None and is_dequantize(producer):
            source = producer.inputs[0]
            if source is not None and constant_of(source) is None:
                reads[source.name or ""] = qparams_of(producer)
        elif is_float(value):
            reads[value.name or ""] = None
    writes: dict[str, QParams | None] = {}
    for value in node.outputs:
        pairs = [user for user, _ in value.uses() if is_quantize(user)]
        for pair in pairs:
            writes[pair.outputs[0].name or ""] = qparams_of(pair)
        if not pairs and is_float(value):
            writes[value.name or ""] = None
    return Operator(node.name or "", node.op_type, reads, writes)


@dataclass(frozen=True)
class CompiledGraph:
    """The dumped QNN graphs of one model, as one."""

    nodes: tuple[QnnNode, ...]
    tensors: Mapping[str, QnnTensor]
    static: frozenset[str]

    @classmethod
    def load(cls, folder: Path, aliases: Mapping[str, str]) -> CompiledGraph:
        """Read all graphs that were dumped into a folder; ``aliases`` gives tensors the names of the model."""
        files = sorted(file for file in folder.glob("*.json") if not file.name.endswith("tensor_log.json"))
        graphs = [load_graph(file) for file in files]
        static = {
            name
            for file in files
            for name, tensor in json.loads(file.read_text())["graph"]["tensors"].items()
            if tensor["type"] == _STATIC
        }
        tensors = {aliases.get(name, name): tensor for graph in graphs for name, tensor in graph.tensors.items()}

        def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(aliases.get(name, name) for name in names)

        nodes = (node for graph in graphs for node in graph.nodes)
        return cls(
            tuple(replace(node, inputs=renamed(node.inputs), outputs=renamed(node.outputs)) for node in nodes),
            tensors,
            frozenset(renamed(tuple(static))),
        )

    @cached_property
    def producers(self) -> dict[str, QnnNode]:
        """The operator that writes each tensor."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def consumers(self) -> dict[str, list[QnnNode]]:
        """The operators that read each tensor."""
        found = defaultdict[str, list[QnnNode]](list)
        for node in self.nodes:
            for name in node.inputs:
                found[name].append(node)
        return found

    def dtype(self, name: str) -> DType | None:
        """The dtype of a tensor; None if it has none with a scale and is not float either."""
        tensor = self.tensors.get(name)
        return None if tensor is None else tensor.dtype

    def of_operators(self, names: Iterable[str]) -> dict[str, list[QnnNode]]:
        """The QNN operators that the nodes of a model became, by the names that they have kept or begin with."""
        known = frozenset(names)
        found = defaultdict[str, list[QnnNode]](list)
        for node in self.nodes:
            if node.type not in _CONVERSIONS and (owner := _owner(node.name, known)):
                found[owner].append(node)
        return found


def _owner(name: str, known: frozenset[str]) -> str:
    """The name itself, or the longest known one that it begins with and that does not end inside a number."""
    while (shorter := MOVED.sub("", name)) != name and name not in known:
        name = shorter
    if name in known:
        return name
    begins = (name[:end] for end in range(len(name) - 1, 0, -1) if not name[end].isdigit())
    return next((beginning for beginning in begins if beginning in known), "")


def changes(path: Path, graphs: Path, log: str, error: str) -> dict[str, Changed]:
    """The operators of a QDQ model that the compiler changes, by name."""
    graph, found = CompiledGraph.load(graphs, _pair_names(path)), operators(path)
    became = graph.of_operators(operator.name for operator in found)
    everything = {operator.name for operator in found} if _ALL_ON_CPU.search(log) else set[str]()
    on_cpu = everything or _on_cpu(found, became, set(_placed_on_cpu(log)), graph)
    refused = _refused(path, log) if error else {}
    result: dict[str, Changed] = {}
    for operator in found:
        if operator.name in refused:
            result[operator.name] = Changed(operator, "refused", refused[operator.name])
        elif operator.name in on_cpu:
            result[operator.name] = Changed(operator, "cpu")
        elif (changed := _change(operator, became.get(operator.name) or _writers(operator, graph), graph)) is not None:
            result[operator.name] = changed
    return result


def _on_cpu(
    found: list[Operator], became: Mapping[str, list[QnnNode]], placed: set[str], graph: CompiledGraph
) -> set[str]:
    """The operators that run on the CPU, by their own name there or merged into all that read them."""
    known = frozenset(operator.name for operator in found)
    on_cpu = {_owner(name, known) for name in placed} - {""}
    readers = defaultdict[str, list[str]](list)
    for operator in found:
        for name in operator.reads:
            readers[name].append(operator.name)
    for operator in reversed(found):
        behind = [reader for name in operator.writes for reader in readers[name]]
        merged = operator.reads and not became.get(operator.name) and not _writers(operator, graph)
        if merged and behind and on_cpu.issuperset(behind):
            on_cpu.add(operator.name)
    return on_cpu


def _writers(operator: Operator, graph: CompiledGraph) -> list[QnnNode]:
    """The QNN operators that write its outputs, for one whose name the graph has not kept."""
    found = [graph.producers[name] for name in operator.writes if name in graph.producers]
    return [node for node in found if node.type not in _CONVERSIONS]


def _change(operator: Operator, nodes: list[QnnNode], graph: CompiledGraph) -> Changed | None:
    if not operator.reads and not operator.writes:
        return None  # it computes on indices, sizes or booleans
    used = {
        name: dtype
        for node in nodes
        for name in (*node.inputs, *node.outputs)
        if name not in graph.static and (dtype := graph.dtype(name)) is not None
    }
    floats = [name for name, dtype in used.items() if not dtype.is_quantized]
    if operator.in_integers and floats:
        return Changed(operator, "float", f"{floats[0]} is {used[floats[0]]}")
    if operator.in_integers:
        for node in nodes:
            for name in node.inputs:
                before = graph.producers.get(name)
                if before is not None and before.type == "Convert":
                    source, result = graph.dtype(before.inputs[0]), graph.dtype(name)
                    asked = operator.reads.get(name)  # a second Q/DQ pair on the input is a Convert as well
                    if source is not None and source is not result and (asked is None or asked.dtype is not result):
                        return Changed(operator, "converted", f"{before.inputs[0]} from {source} to {result}")
    elif used and not floats:
        return Changed(operator, "integers", ", ".join(f"{name} is {dtype}" for name, dtype in used.items()))
    for name, params in operator.writes.items():
        if params is not None and (difference := _difference(graph.tensors.get(name), params)):
            return Changed(operator, "stored", f"{name}: {difference}")
        if params is not None and not operator.in_integers and _is_removed(name, graph):
            return Changed(operator, "unrounded", name)
    return None


def _difference(tensor: QnnTensor | None, params: QParams) -> str:
    if tensor is None:
        return ""
    if tensor.dtype is not params.dtype:
        return f"{params.dtype} became {tensor.dtype}"
    if params.encoding.granularity is not Granularity.TENSOR:
        return ""
    scale, zero_point = float(params.scale), int(params.zero_point)
    if not np.isclose(tensor.scale, scale, rtol=_SCALE_RTOL, atol=0) or tensor.zero_point != zero_point:
        return f"scale {scale:.6g} and zero point {zero_point} became {tensor.scale:.6g} and {tensor.zero_point}"
    return ""


def _is_removed(name: str, graph: CompiledGraph) -> bool:
    """Whether a quantized tensor is only written by a Quantize and read by Dequantizes inside the graph."""
    writer, readers = graph.producers.get(name), graph.consumers.get(name, [])
    users = [user for reader in readers for output in reader.outputs for user in graph.consumers.get(output, [])]
    written = writer is not None and writer.type == "Quantize"
    return written and bool(users) and all(reader.type == "Dequantize" for reader in readers)


def _placed_on_cpu(log: str) -> Iterator[str]:
    provider = ""
    for line in log.splitlines():
        if match := _PLACED.search(line):
            provider = match[1]
        elif provider == _CPU and (match := _PLACED_NODE.search(line)) and match[1] not in _PAIR:
            yield match[2]


def _refused(path: Path, log: str) -> dict[str, str]:
    """The nodes that the compiler names in the log of a graph that it does not finalize, with the reason."""
    findings = log_findings(log, emitted_nodes(path))
    return {node: finding.message for finding in findings for node in finding.place.nodes}
