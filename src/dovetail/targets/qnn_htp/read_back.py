"""Compare the plan with the QNN graph that the provider dumps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from dovetail.backend import Outcome, ReadBack, TensorReadBack, changed
from dovetail.encoding import DType, Granularity, QParams
from dovetail.model.edit import constant_of
from dovetail.numerics.lpbq import channel_scales
from dovetail.qdq.quantized_values import QuantizedValue, quantized_values
from dovetail.storage import Plan, Storage
from dovetail.targets.qnn_htp.dump import MOVED, DumpError, QnnGraph, QnnNode, QnnTensor, load_dump
from dovetail.targets.qnn_htp.expanded_blocks import BlockEncodings
from dovetail.targets.qnn_htp.floats import FloatReader, LoggedPrecisions

EVIDENCE = "the QNN graph that the provider passed to the HTP compiler, and the compiler's log"
# QNN operators that only move data.
_LAYOUT = ("Reshape", "Transpose")
# The name under which the provider stores the constant vector of a MatMul, as a matrix.
_AS_MATRIX = "{}_reshape"
# The name under which it stores the bias of a layer that computes in float16, because its weight has float scales.
_IN_FLOAT = "{}_fp16"
ZERO_BIAS = "a bias of zeros, which has the same values with any scale"


class _Found(NamedTuple):
    """What was found in place of a planned dtype, and where."""

    dtype: str | DType
    where: str


def read_dump(emitted_path: Path, dump: Path, plan: Plan, log: str) -> ReadBack:
    """Look up every planned tensor in the dump, and find operators that do not use it as planned."""
    try:
        graph = load_dump(dump)
    except DumpError as error:
        return ReadBack((), EVIDENCE, unparsed=str(error))
    return read_graph(ir.load(emitted_path), graph, plan, log, BlockEncodings.read(dump, log))


def read_graph(emitted: ir.Model, graph: QnnGraph, plan: Plan, log: str, blocks: BlockEncodings) -> ReadBack:
    """Look up every planned tensor in a QNN graph, whose tensors have the names of the emitted graph."""
    stored = list(quantized_values(emitted, plan))
    logged = LoggedPrecisions.read(log)
    names = {value.name for value in stored}
    changes = dict(_silent_changes(graph, names, _PlannedFloat.of(emitted, plan), logged.float_dtype))
    zeros = {v.name for v in emitted.graph.initializers.values() if v.name in names and _is_zero_bias(v)}
    looked_up = [
        value.as_read(Outcome.MATCHED, ZERO_BIAS) if value.name in zeros else _look_up(value, graph, changes, blocks)
        for value in stored
    ]
    matched = {value.group for value, row in zip(stored, looked_up, strict=True) if row.outcome is Outcome.MATCHED}
    rows = []
    for value, row in zip(stored, looked_up, strict=True):
        if row.outcome is Outcome.NOT_FOUND and value.group is not None and value.group in matched:
            detail = f"only moves data inside group {value.group!r}, which was read back as planned"
            row = replace(row, outcome=Outcome.ABSORBED, detail=detail)
        rows.append(row)
    return ReadBack((*rows, *FloatReader(graph, logged).rows(emitted, plan)), EVIDENCE)


def _is_zero_bias(value: ir.Value) -> bool:
    """Whether a constant is an int32 bias of zeros: ONNX Runtime replaces equal biases by one, which has one scale."""
    array = constant_of(value) if value.dtype is ir.DataType.INT32 else None
    return array is not None and not np.any(array)


def _look_up(
    value: QuantizedValue, graph: QnnGraph, changes: Mapping[str, _Found], blocks: BlockEncodings
) -> TensorReadBack:
    name = value.name if value.name in graph.tensors else _AS_MATRIX.format(value.name)
    tensor = graph.tensors.get(name)
    if tensor is None and value.params.dtype is DType.S32 and _IN_FLOAT.format(value.name) in graph.tensors:
        return value.as_read(Outcome.ABSORBED, "added in float16 by an operator with float scales per block")
    if tensor is None:
        return value.as_read(Outcome.NOT_FOUND, "not in the dumped graph")
    if tensor.dtype is not value.params.dtype:
        dtype = "a dtype without scale and zero point" if tensor.dtype is None else str(tensor.dtype)
        return value.as_read(*changed(value.params.dtype, dtype))
    per_tensor = value.params.encoding.granularity is Granularity.TENSOR
    if per_tensor:
        same_scale = np.isclose(tensor.scale, float(value.params.scale), rtol=1e-6)
        if not same_scale or tensor.zero_point != int(value.params.zero_point):
            planned = _scale_text(float(value.params.scale), int(value.params.zero_point))
            return value.as_read(*changed(planned, _scale_text(tensor.scale, tensor.zero_point)))
    encoding = value.params.encoding
    if encoding.is_blocked and tensor.granularity is not encoding.granularity:
        texts = (
            f"{value.params.dtype} per {granularity}" for granularity in (encoding.granularity, tensor.granularity)
        )
        return value.as_read(*changed(*texts))
    if tensor.channels and (found := _other_channels(value.params, tensor)) is not None:
        return value.as_read(*changed(*found))
    if encoding.granularity is Granularity.EXPANDED_BLOCK and not tensor.block_scales:
        if not blocks.encodings:
            return value.as_read(Outcome.NOT_FOUND, "the provider's scales per block were not recorded")
        difference = blocks.difference(name, value.params)
        if difference is not None:
            return value.as_read(*changed(*difference))
    if value.name in changes:
        return value.as_read(*changed(value.params.dtype, *changes[value.name]))
    consumers = sorted({node.type for node in graph.nodes if name in node.inputs})
    detail = f"input of {', '.join(consumers)}" if consumers else "output"
    if encoding.granularity is Granularity.EXPANDED_BLOCK:
        detail += "; axis, block size, bit widths, every integer scale and every scale per channel were compared"
    elif tensor.channels:
        detail += f"; the scales and zero points of {len(tensor.channels)} channels were compared"
    elif not per_tensor:
        detail += "; only the dtype was compared, the dump has no per-channel scales"
    return value.as_read(Outcome.MATCHED, detail)


def _other_channels(params: QParams, tensor: QnnTensor) -> tuple[str, str] | None:
    """What is planned and what was found instead in the scales per channel, or the integer scales; None if equal."""
    if params.encoding.granularity is Granularity.BLOCK:  # in which order a file has them is not known
        return None
    planned = channel_scales(params).reshape(-1)
    zero_points = 0 if params.encoding.is_blocked else params.zero_point.reshape(-1)
    scales = np.array([scale for scale, _ in tensor.channels])
    if scales.size != planned.size:
        return f"{planned.size} scales", f"{scales.size}"
    different = ~np.isclose(scales, planned, rtol=1e-6) | (np.array([z for _, z in tensor.channels]) != zero_points)
    if np.any(different):
        first = int(np.argmax(different))
        return f"scale {float(planned[first]):.6g} of channel {first}", f"{scales[first]:.6g}"
    if not tensor.block_scales or params.int_scale is None or params.axis is None:
        return None
    integers = np.moveaxis(params.int_scale, params.axis, -1).reshape(-1)
    if integers.size != len(tensor.block_scales) or np.any(integers != tensor.block_scales):
        return f"{integers.size} integer scales", "others"
    return None


def _has_blocks(storage: Storage) -> bool:
    return isinstance(storage, QParams) and storage.encoding.granularity is Granularity.BLOCK


def _scale_text(scale: float, zero_point: int) -> str:
    return f"scale {scale:.6g} and zero point {zero_point}"


def _silent_changes(
    graph: QnnGraph, planned: set[str], in_float: _PlannedFloat, float_dtype: DType
) -> Iterator[tuple[str, _Found]]:
    """Planned tensors that are in the dump, but that the provider converts or dequantizes before an operator.

    A Convert that is not planned changes the precision; after a Dequantize inside the graph the consumer runs in float;
    the compiler removes a Q/DQ pair between float operators.
    """
    consumers: dict[str, list[QnnNode]] = defaultdict(list)
    for node in graph.nodes:
        for name in node.inputs:
            consumers[name].append(node)
    producers = {name: node for node in graph.nodes for name in node.outputs}
    yield from _removed_pairs(graph, consumers, planned, float_dtype)
    for node in graph.nodes:
        if not node.inputs or not node.outputs:
            continue
        source, result = _planned_source(node.inputs[0], producers, planned), node.outputs[0]
        if source is None:
            continue
        users = [user for user in _readers(result, consumers) if user.type != "Quantize"]
        if node.type == "Convert" and result not in planned:
            tensor = graph.tensors.get(result)
            dtype = "an unknown dtype" if tensor is None or tensor.dtype is None else str(tensor.dtype)
            yield source, _Found(dtype, f"converted before {_types(users)}")
        elif node.type == "Dequantize" and users and not any(in_float.computes(u, consumers) for u in users):
            yield source, _Found(float_dtype, f"dequantized before {_types(users)}")


@dataclass(frozen=True, slots=True)
class _PlannedFloat:
    """The names in the emitted graph of all nodes and tensors, and of those that are planned in float."""

    names: frozenset[str]
    float_names: frozenset[str]

    @classmethod
    def of(cls, emitted: ir.Model, plan: Plan) -> _PlannedFloat:
        nodes = list(emitted.graph)
        names = {node.name or "" for node in nodes} | {v.name or "" for node in nodes for v in node.outputs}
        float_names = {edge.node for edge, choice in plan.edges.items() if not choice.storage.dtype.is_quantized}
        float_names |= {name for name, choice in plan.tensors.items() if not choice.storage.dtype.is_quantized}
        # With float scales per block, HTP dequantizes the activations and computes in float16.
        float_names |= {edge.node for edge, choice in plan.edges.items() if _has_blocks(choice.storage)}
        # Where ONNX Runtime changes the layout, an operator keeps its name, but its output has another one.
        float_names |= {node.name or "" for node in nodes if any(v.name in float_names for v in node.outputs)}
        return cls(frozenset(names), frozenset(float_names))

    def computes(self, node: QnnNode, consumers: Mapping[str, list[QnnNode]]) -> bool:
        """Whether a QNN operator, or the one that it is the first part of, is planned in float.

        The provider lowers some operators to several ones (ReduceL2 to Multiply, ReduceSum and SquareRoot; an LSTM to
        StridedSlices and one Lstm per step), of which only the last one has a name of the emitted graph.
        """
        waiting, seen = [node], set[str]()
        while waiting:
            part = waiting.pop()
            names = {part.name, MOVED.sub("", part.name), *part.outputs}
            if names & self.float_names:
                return True
            if not names & self.names and part.name not in seen:
                seen.add(part.name)
                waiting += [user for output in part.outputs for user in consumers.get(output, [])]
        return False


def _readers(name: str, consumers: Mapping[str, list[QnnNode]]) -> Iterator[QnnNode]:
    """What reads a tensor, also through the Casts that keep an operator in float (islands.py)."""
    for node in consumers.get(name, ()):
        if node.type == "Cast":
            for output in node.outputs:
                yield from _readers(output, consumers)
        else:
            yield node


def _planned_source(name: str, producers: Mapping[str, QnnNode], planned: set[str]) -> str | None:
    """The planned tensor that a tensor is a copy of, also through Reshape and Transpose that ONNX Runtime inserted."""
    while name not in planned:
        producer = producers.get(name)
        if producer is None or producer.type not in _LAYOUT or not producer.inputs:
            return None
        name = producer.inputs[0]
    return name


def _types(nodes: Iterable[QnnNode]) -> str:
    return ", ".join(sorted({node.type for node in nodes}))


def _removed_pairs(
    graph: QnnGraph, consumers: Mapping[str, list[QnnNode]], planned: set[str], float_dtype: DType
) -> Iterator[tuple[str, _Found]]:
    """Q/DQ pairs between float operators: they are in the dump, but the compiler removes them.

    Seen in the emulator's outputs (onnxruntime-qnn 2.7.0, soc 43): 58 dB against float, where the Q/DQ pair would give
    31 dB. A pair before a graph output is kept.
    """
    for node in graph.nodes:
        if node.type != "Quantize" or not node.outputs or node.outputs[0] not in planned:
            continue
        direct = consumers.get(node.outputs[0], [])
        users = [user for consumer in direct for name in consumer.outputs for user in consumers.get(name, [])]
        if direct and users and all(consumer.type == "Dequantize" for consumer in direct):
            where = f"a Q/DQ pair between float operators, removed before {_types(users)}"
            yield node.outputs[0], _Found(float_dtype, where)
