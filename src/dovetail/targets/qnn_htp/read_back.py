"""Reading back what was asked of the HTP compiler, from the QNN graph that the provider dumps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail.backend import Outcome, ReadBack, TensorReadBack
from dovetail.encoding import Granularity
from dovetail.qdq.stored import StoredValue, stored_values
from dovetail.storage import Plan
from dovetail.targets.qnn_htp.dump import DumpError, QnnGraph, QnnNode, load_dump
from dovetail.targets.qnn_htp.floats import FloatReader, validated

EVIDENCE = "the QNN graph that the provider handed to the HTP compiler, and the compiler's log"
# QNN operators that only move bytes.
_LAYOUT = ("Reshape", "Transpose")


def read_dump(emitted_path: Path, dump: Path, plan: Plan, log: str) -> ReadBack:
    """Every planned storage, looked up in the dump, and every operator that got something else than planned."""
    try:
        graph = load_dump(dump)
    except DumpError as error:
        return ReadBack((), EVIDENCE, unparsed=str(error))
    emitted = ir.load(emitted_path)
    stored = list(stored_values(emitted, plan))
    silent = dict(_silent_changes(graph, {one.name for one in stored}, plan))
    found = [_read(one, graph, silent) for one in stored]
    matched = {one.group for one, read in zip(stored, found, strict=True) if read.outcome is Outcome.MATCHED}
    rows = []
    for one, read in zip(stored, found, strict=True):
        if read.outcome is Outcome.NOT_FOUND and one.group is not None and one.group in matched:
            detail = f"a layout step inside group {one.group!r}, whose bytes were read back as planned"
            read = replace(read, outcome=Outcome.ABSORBED, detail=detail)
        rows.append(read)
    return ReadBack((*rows, *FloatReader(graph, validated(log)).rows(emitted, plan)), EVIDENCE)


def _read(one: StoredValue, graph: QnnGraph, silent: Mapping[str, str]) -> TensorReadBack:
    tensor = graph.tensors.get(one.name)
    if tensor is None:
        return one.as_read(Outcome.NOT_FOUND, "not in the dumped graph")
    if tensor.dtype is not one.params.dtype:
        found = "plain numbers" if tensor.dtype is None else str(tensor.dtype)
        return one.as_read(Outcome.CHANGED, f"{found} instead of {one.params.dtype}")
    per_tensor = one.params.encoding.granularity is Granularity.TENSOR
    if per_tensor:
        same_scale = np.isclose(tensor.scale, float(one.params.scale), rtol=1e-6)
        if not same_scale or tensor.zero_point != int(one.params.zero_point):
            return one.as_read(Outcome.CHANGED, f"scale {tensor.scale:.6g}, zero point {tensor.zero_point}")
    if one.name in silent:
        return one.as_read(Outcome.CHANGED, silent[one.name])
    readers = sorted({node.type for node in graph.nodes if one.name in node.inputs})
    detail = f"read by {', '.join(readers)}" if readers else "output"
    if not per_tensor:
        detail += "; by its type only, the dump has no scales per channel"
    return one.as_read(Outcome.MATCHED, detail)


def _silent_changes(graph: QnnGraph, planned: set[str], plan: Plan) -> Iterator[tuple[str, str]]:
    """Planned storages that are there, but that the provider converts or reads back in front of an operator.

    A Convert that no plan asked for is another precision; a Dequantize inside the graph means that what reads it runs
    in float; a pair with float on both sides is taken out.
    """
    readers: dict[str, list[QnnNode]] = defaultdict(list)
    for node in graph.nodes:
        for name in node.inputs:
            readers[name].append(node)
    makers = {name: node for node in graph.nodes for name in node.outputs}
    kept_float = {edge.node for edge, choice in plan.edges.items() if not choice.storage.dtype.is_quantized}
    kept_float |= {name for name, choice in plan.tensors.items() if not choice.storage.dtype.is_quantized}
    yield from _elided(graph, readers, planned)
    for node in graph.nodes:
        if not node.inputs or not node.outputs:
            continue
        source, result = _carried_from(node.inputs[0], makers, planned), node.outputs[0]
        if source is None:
            continue
        users = [user for user in readers[result] if user.type != "Quantize"]
        if node.type == "Convert" and result not in planned:
            tensor = graph.tensors.get(result)
            found = "another type" if tensor is None or tensor.dtype is None else str(tensor.dtype)
            yield source, f"converted to {found} in front of {', '.join(u.type for u in users)}"
        elif node.type == "Dequantize" and users and not any({u.name, *u.outputs} & kept_float for u in users):
            yield source, f"read back into float in front of {', '.join(sorted({u.type for u in users}))}"


def _carried_from(name: str, makers: Mapping[str, QnnNode], planned: set[str]) -> str | None:
    """The planned storage whose bytes a tensor has, behind any layout steps that ONNX Runtime put in between."""
    while name not in planned:
        maker = makers.get(name)
        if maker is None or maker.type not in _LAYOUT or not maker.inputs:
            return None
        name = maker.inputs[0]
    return name


def _elided(graph: QnnGraph, readers: Mapping[str, list[QnnNode]], planned: set[str]) -> Iterator[tuple[str, str]]:
    """Pairs with float on both sides: the dump still has them, the compiler takes them out.

    Seen in the emulator's numbers (onnxruntime-qnn 2.7.0, soc 43): 58 dB against float where the pair costs 31. At a
    graph output the pair is kept.
    """
    for node in graph.nodes:
        if node.type != "Quantize" or not node.outputs or node.outputs[0] not in planned:
            continue
        readings = readers.get(node.outputs[0], [])
        further = [user for reading in readings for name in reading.outputs for user in readers.get(name, [])]
        if readings and further and all(reading.type == "Dequantize" for reading in readings):
            users = ", ".join(sorted({user.type for user in further}))
            yield node.outputs[0], f"a pair between float operators, taken out in front of {users}"
