"""Compare what Qualcomm's converter wrote (``*_net.json`` or ``model.cpp``) with the plan, tensor by tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import ConverterReport, Outcome, ReadBack, TensorReadBack
from dovetail.encoding import DType, QParams
from dovetail.errors import InputError
from dovetail.model.origin import origin_of
from dovetail.qdq.quantized_values import QuantizedValue, quantized_values
from dovetail.storage import Plan
from dovetail.targets.qairt.model_cpp import load_model_cpp
from dovetail.targets.qnn_htp.dump import DumpError, QnnGraph, QnnNode, QnnTensor, load_graph
from dovetail.targets.qnn_htp.expanded_blocks import BlockEncodings
from dovetail.targets.qnn_htp.read_back import ZERO_BIAS, read_graph

_EVIDENCE = "the converter's output {}: data types, scales and zero points, and those per channel that the file has"
_CONVERT = "Convert"
GRAPHS = (".json", ".cpp")
# What Quantizer V2 counts: tensors without an encoding, those that got one from a neighbour, and those in float.
SUMMARY = ("MISSING ENC", "PROPAGATED", "FP16 FALLBACK", "ADAPTED OPS", "CONVERTS")


def read_converted(emitted_path: Path, outputs: Sequence[Path], plan: Plan) -> ReadBack:
    """Look up every planned tensor in the converter's output: one graph, or those of the parts of a model."""
    evidence = _EVIDENCE.format(", ".join(output.name for output in outputs))
    try:
        graphs = _graphs(outputs)
    except DumpError as error:
        return ReadBack((), evidence, unparsed=str(error))
    rows = _rows(ir.load(emitted_path), _joined(graphs), plan)
    if len(graphs) > 1:
        of_parts = [(graph, _rows(ir.load(emitted_path), graph, plan)) for graph in graphs]
        each = zip(*(part for _, part in of_parts), strict=True)
        rows = [_worst(row, list(zip(graphs, own, strict=True))) for row, own in zip(rows, each, strict=True)]
    return ReadBack(tuple(rows), evidence)


def _graphs(outputs: Sequence[Path]) -> list[QnnGraph]:
    """The graphs in files; one that cannot be read, and a file that is given twice, is a DumpError."""
    graphs, given = [], dict[bytes, Path]()
    for path in outputs:
        try:
            content = path.read_bytes()
            graphs.append(load_model_cpp(path) if path.suffix == ".cpp" else load_graph(path))
        except (OSError, UnicodeDecodeError) as error:
            raise DumpError(f"{path.name}: {error}") from error
        if content in given:
            raise DumpError(f"{given[content]} and {path} are the same file: give every part once")
        given[content] = path
    return graphs


def _rows(emitted: ir.Model, graph: QnnGraph, plan: Plan) -> list[TensorReadBack]:
    """Every planned tensor as one graph has it."""
    renamed = _with_planned_sign(with_emitted_names(graph, emitted, plan), emitted, plan)
    read = read_graph(emitted, renamed, plan, "", BlockEncodings({}, b""))
    return [_as_stored(_in_float(row, renamed), renamed, plan) for row in read.tensors]


def _worst(row: TensorReadBack, of_parts: Sequence[tuple[QnnGraph, TensorReadBack]]) -> TensorReadBack:
    """What all parts together say of a planned tensor, or what one with integers has otherwise.

    A part that is wholly in float has the quantized tensors that it exchanges in float: that is no change.
    """
    changes = (own for graph, own in of_parts if own.outcome is Outcome.CHANGED and _has_integers(graph))
    return next(changes, row)


def _has_integers(graph: QnnGraph) -> bool:
    return any(tensor.dtype is not None and tensor.dtype.is_quantized for tensor in graph.tensors.values())


def read_output(emitted: Path, outputs: Sequence[Path], plan: Plan) -> ConverterReport:
    """What files of the converter say: the graph of the model, or of its parts, and what its quantizer printed."""
    graphs = [path for path in outputs if path.suffix in GRAPHS]
    notes = tuple(note for path in outputs if path not in graphs for note in _printed(path))
    return ConverterReport(_graph_of_run(emitted, graphs, plan) if graphs else None, notes)


def _printed(log: Path) -> list[str]:
    """The lines of a log's summary of Quantizer V2, as notes."""
    try:
        counts = quantizer_summary(log.read_text(errors="replace"))
    except OSError as error:
        raise InputError(f"{log}: cannot be read ({error.strerror or error})") from error
    if not counts:
        raise InputError(
            f"{log}: expected *_net.json, a generated .cpp, or a log with the summary of Quantizer V2 "
            f"({', '.join(SUMMARY)})"
        )
    return [f"{log.name}: {label}: {count}" for label, count in counts.items()]


def _graph_of_run(emitted: Path, outputs: Sequence[Path], plan: Plan) -> ReadBack:
    """What graphs say about the plan; a file that is no graph, or that of another model, is an error."""
    read = read_converted(emitted, outputs, plan)
    if read.unparsed:
        names = ", ".join(map(str, outputs))
        raise InputError(f"{names}: expected *_net.json or a .cpp that the converter wrote; {read.unparsed}")
    for path in outputs:
        rows = read_converted(emitted, [path], plan).tensors
        if not any(
            row.outcome not in (Outcome.NOT_FOUND, Outcome.ABSORBED) and row.detail != ZERO_BIAS for row in rows
        ):
            raise InputError(
                f"{path}: no planned tensor of this run is in it; expected what was converted from this run"
            )
    return read


def _joined(graphs: Sequence[QnnGraph]) -> QnnGraph:
    """The graph of all parts. A tensor that parts exchange is quantized if one of them has it quantized.

    Operators of two parts may have the same name: the converter numbers the Transposes that it adds.
    """
    tensors: dict[str, QnnTensor] = {}
    for graph in graphs:
        for name, tensor in graph.tensors.items():
            known = tensors.get(name)
            if known is None or known.dtype is None or not known.dtype.is_quantized:
                tensors[name] = tensor
    return QnnGraph(tensors, tuple(node for graph in graphs for node in graph.nodes))


def _with_planned_sign(graph: QnnGraph, emitted: ir.Model, plan: Plan) -> QnnGraph:
    """The graph with integers as the plan has them: uint16 with zero point 32768 is int16 with zero point 0."""
    tensors = dict(graph.tensors)
    for stored in quantized_values(emitted, plan):
        tensor, planned = tensors.get(stored.name), stored.params.dtype
        found = None if tensor is None else tensor.dtype
        if tensor is None or found is None or not found.is_integer or not planned.is_integer:
            continue
        if found is not planned and found.bits == planned.bits:
            zero_point = tensor.zero_point + planned.grid.low - found.grid.low
            if zero_point == int(stored.params.zero_point.reshape(-1)[0]):
                tensors[stored.name] = replace(tensor, dtype=planned, zero_point=zero_point)
    return QnnGraph(tensors, graph.nodes)


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
    origins = {str(value.name): _original_names(value) for value in [*values, *emitted.graph.initializers.values()]}
    known = [(original, str(value.name)) for value in values for original in origins[str(value.name)]]
    for source, emitted_name in (*known, *((str(value.name), str(value.name)) for value in values)):
        if (name := converter_name(source)) in graph.tensors:
            yield name, emitted_name
    converts = {(node.inputs[0], _dtype(graph, node)): node.outputs[0] for node in graph.nodes if _converts(node)}
    for stored in quantized_values(emitted, plan):
        if stored.name in graph.tensors:  # what ONNX Runtime's provider wrote has the names of the emitted graph
            continue
        tensor = next((n for n in _converter_tensors(stored, origins) if n in graph.tensors), "")
        if tensor and (stored.edge is None or "__as_" not in stored.name):
            yield tensor, stored.name
        elif tensor and (tensor, stored.params.dtype) in converts:
            yield converts[tensor, stored.params.dtype], stored.name


def _converts(node: QnnNode) -> bool:
    return node.type == _CONVERT and bool(node.inputs) and bool(node.outputs)


def _dtype(graph: QnnGraph, node: QnnNode) -> DType | None:
    tensor = graph.tensors.get(node.outputs[0])
    return None if tensor is None else tensor.dtype


def _converter_tensors(stored: QuantizedValue, origins: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The converter's names of a quantized value: those of the tensor before Q."""
    plain = stored.name.split("__as_")[0].removesuffix("__q")
    return [converter_name(name) for name in (plain, *origins.get(plain, ()))]


def _original_names(value: ir.Value) -> tuple[str, ...]:
    """The names of a value in the caller's file, if it has the same values there."""
    origin = origin_of(value)
    return origin.names if origin.exact else ()


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


def _as_stored(row: TensorReadBack, graph: QnnGraph, plan: Plan) -> TensorReadBack:
    """An operand that is read with the values that its tensor has needs no tensor of its own."""
    choice = None if row.edge is None or row.outcome is not Outcome.NOT_FOUND else plan.edges.get(row.edge)
    stored = row.emitted.split("__as_")[0]
    tensor = graph.tensors.get(stored if stored.endswith("__q") else f"{stored}__q")
    if choice is None or tensor is None or tensor.dtype is None or not isinstance(choice.storage, QParams):
        return row
    read, found = choice.storage, tensor.zero_point - tensor.dtype.grid.low if tensor.dtype.is_integer else None
    same_grid = found == int(read.zero_point.reshape(-1)[0]) - read.dtype.grid.low
    if same_grid and np.isclose(tensor.scale, float(read.scale.reshape(-1)[0]), rtol=1e-6):
        return replace(row, outcome=Outcome.ABSORBED, detail="the tensor itself has these values")
    return row


def _outputs_of(node: str, graph: QnnGraph) -> list[QnnTensor]:
    """What the converter's nodes of this name write."""
    names = (node, converter_name(node))
    outputs = (name for each in graph.nodes if each.name in names for name in each.outputs)
    return [graph.tensors[name] for name in outputs if name in graph.tensors]
