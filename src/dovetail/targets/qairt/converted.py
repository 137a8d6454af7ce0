"""Compare what Qualcomm's converter wrote (``*_net.json`` or ``model.cpp``) with the plan, tensor by tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import ConverterReport, Outcome, ReadBack, TensorReadBack
from dovetail.encoding import DType
from dovetail.errors import InputError
from dovetail.qdq.quantized_values import QuantizedValue, quantized_values
from dovetail.storage import Plan
from dovetail.targets.qairt.model_cpp import load_model_cpp
from dovetail.targets.qnn_htp.dump import DumpError, QnnGraph, QnnNode, QnnTensor, load_graph
from dovetail.targets.qnn_htp.expanded_blocks import BlockEncodings
from dovetail.targets.qnn_htp.read_back import ZERO_BIAS, read_graph

_EVIDENCE = "the converter's output {}: data types, and scales and zero points of tensors with one scale"
_CONVERT = "Convert"
GRAPHS = (".json", ".cpp")
# What Quantizer V2 counts: tensors without an encoding, those that got one from a neighbour, and those in float.
SUMMARY = ("MISSING ENC", "PROPAGATED", "FP16 FALLBACK", "ADAPTED OPS", "CONVERTS")


def read_converted(emitted_path: Path, output: Path, plan: Plan) -> ReadBack:
    """Look up every planned tensor in the converter's output."""
    evidence = _EVIDENCE.format(output.name)
    try:
        graph = load_model_cpp(output) if output.suffix == ".cpp" else load_graph(output)
    except DumpError as error:
        return ReadBack((), evidence, unparsed=str(error))
    except (OSError, UnicodeDecodeError) as error:
        return ReadBack((), evidence, unparsed=f"{output.name}: {error}")
    emitted = ir.load(emitted_path)
    renamed = with_emitted_names(graph, emitted, plan)
    read = read_graph(emitted, renamed, plan, "", BlockEncodings({}, b""))
    rows = tuple(_in_float(row, renamed) for row in read.tensors)
    return replace(read, tensors=rows, evidence=evidence)


def read_output(emitted: Path, output: Path, plan: Plan) -> ConverterReport:
    """What one file of the converter says: its graph, or what its quantizer printed."""
    if output.suffix in GRAPHS:
        return ConverterReport(_graph_of_run(emitted, output, plan))
    try:
        counts = quantizer_summary(output.read_text(errors="replace"))
    except OSError as error:
        raise InputError(f"{output}: cannot be read ({error.strerror or error})") from error
    if not counts:
        raise InputError(
            f"{output}: expected *_net.json, a generated .cpp, or a log with the summary of Quantizer V2 "
            f"({', '.join(SUMMARY)})"
        )
    return ConverterReport(notes=tuple(f"{output.name}: {label}: {count}" for label, count in counts.items()))


def _graph_of_run(emitted: Path, output: Path, plan: Plan) -> ReadBack:
    """What a graph says about the plan; a file that is no graph, or that of another model, is an error."""
    read = read_converted(emitted, output, plan)
    if read.unparsed:
        raise InputError(f"{output}: expected *_net.json or a .cpp that the converter wrote; {read.unparsed}")
    if not any(
        row.outcome not in (Outcome.NOT_FOUND, Outcome.ABSORBED) and row.detail != ZERO_BIAS for row in read.tensors
    ):
        raise InputError(f"{output}: no planned tensor of this run is in it; expected what was converted from this run")
    return read


def quantizer_summary(text: str) -> dict[str, str]:
    """The lines of the summary that Quantizer V2 prints, by label, with their counts as they are printed."""
    found = {label: re.search(rf"{re.escape(label)}\W+(\d+(?:\s*(?:/|of)\s*\d+)?)", text) for label in SUMMARY}
    return {label: match[1] for label, match in found.items() if match}


def converter_name(name: str) -> str:
    """The name that the converter gives to a tensor: a C identifier, as in ``input_1`` for ``input.1``."""
    plain = re.sub(r"\W", "_", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


def with_emitted_names(graph: QnnGraph, emitted: ir.Model, plan: Plan) -> QnnGraph:
    """The graph with the names of the emitted graph in place of the converter's own.

    The converter has one name for a tensor, the QDQ graph has several: before Q, between Q and DQ, and after DQ.
    """
    names = dict(_renamed(graph, emitted, plan))
    tensors = {names.get(name, name): replace(t, name=names.get(name, name)) for name, t in graph.tensors.items()}
    nodes = tuple(
        QnnNode(
            node.name,
            node.type,
            tuple(names.get(name, name) for name in node.inputs),
            tuple(names.get(name, name) for name in node.outputs),
        )
        for node in graph.nodes
    )
    return QnnGraph(tensors, nodes)


def _renamed(graph: QnnGraph, emitted: ir.Model, plan: Plan) -> Iterator[tuple[str, str]]:
    """(name in the converter's output, name in the emitted graph)."""
    values = [*emitted.graph.inputs, *(value for node in emitted.graph for value in node.outputs)]
    for value in values:
        if (name := converter_name(str(value.name))) in graph.tensors:
            yield name, str(value.name)
    converts = {(node.inputs[0], _dtype(graph, node)): node.outputs[0] for node in graph.nodes if _converts(node)}
    for stored in quantized_values(emitted, plan):
        if stored.name in graph.tensors:  # what ONNX Runtime's provider wrote has the names of the emitted graph
            continue
        tensor = _converter_tensor(stored)
        if tensor in graph.tensors and (stored.edge is None or "__as_" not in stored.name):
            yield tensor, stored.name
        elif (tensor, stored.params.dtype) in converts:
            yield converts[tensor, stored.params.dtype], stored.name


def _converts(node: QnnNode) -> bool:
    return node.type == _CONVERT and bool(node.inputs) and bool(node.outputs)


def _dtype(graph: QnnGraph, node: QnnNode) -> DType | None:
    tensor = graph.tensors.get(node.outputs[0])
    return None if tensor is None else tensor.dtype


def _converter_tensor(stored: QuantizedValue) -> str:
    """The converter's name of a quantized value: that of the tensor before Q."""
    return converter_name(stored.name.split("__as_")[0].removesuffix("__q"))


def _in_float(row: TensorReadBack, graph: QnnGraph) -> TensorReadBack:
    """An operand that is read in float has no tensor of its own: the output of its operator shows what is computed."""
    if row.outcome is not Outcome.NOT_FOUND or row.edge is None or "__dq" not in row.emitted:
        return row
    outputs = _outputs_of(row.edge.node, graph)
    dtypes = {tensor.dtype for tensor in outputs if tensor.dtype is not None}
    if dtypes and all(not dtype.is_quantized for dtype in dtypes):
        dtype = ", ".join(sorted(map(str, dtypes)))
        return replace(row, outcome=Outcome.ABSORBED, detail=f"its operator computes in {dtype}, as its output shows")
    return row


def _outputs_of(node: str, graph: QnnGraph) -> list[QnnTensor]:
    """What the converter's nodes of this name write."""
    names = (node, converter_name(node))
    outputs = (name for each in graph.nodes if each.name in names for name in each.outputs)
    return [graph.tensors[name] for name in outputs if name in graph.tensors]
