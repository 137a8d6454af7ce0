"""The ExecuTorch lowering, called only in a child process: export, lower, save, load, and list the operators."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir

from dovetail.garbage import without_garbage_collection
from dovetail.model.edit import shape_of
from dovetail.targets.xnnpack.census import PlacementRecord, list_operators
from dovetail.targets.xnnpack.module import STEP, build_module, executed
from dovetail.targets.xnnpack.operators.plain import PLAIN
from dovetail.targets.xnnpack.operators.registry import OPERATORS, Operator, torch
from dovetail.targets.xnnpack.session import load_program

_PARTITIONER_LOG = "executorch.backends.xnnpack.partition"
_DELEGATE, _GETITEM = "executorch_call_delegate", "getitem"
# Torch functions of a lowered graph that compute nothing.
_NOT_COMPUTING = (_DELEGATE, _GETITEM, "alloc", "make_tensor")


def prepare() -> None:
    """Compute the patterns that every lowering looks for: it takes longer than lowering a small graph.

    No thread is left behind, so that children can be forked: neither those of OpenMP nor the monitor of tqdm.
    """
    from executorch.backends.xnnpack.partition.graphs import sdpa

    torch.hub.tqdm.monitor_interval = 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sdpa.get_graphs()
    finally:
        torch.set_num_threads(threads)


def lower_in_child(model: str, program: str, census: str, plain: bool = False) -> dict[str, Any]:
    """Lower a QDQ graph to a ``.pte``, load it as a device would, and write the list of its operators."""
    with without_garbage_collection():  # an eighth of the time
        placement = lower(ir.load(model), Path(program), PLAIN if plain else OPERATORS)
    load_program(Path(program))
    Path(census).write_text(json.dumps(list_operators(Path(program), placement)))
    return {}


def lower(model: ir.Model, program: Path, operators: Mapping[str, Operator] = OPERATORS) -> PlacementRecord:
    """Write the program of a graph; returns the node of every debug handle and the operators that are not delegated."""
    module = build_module(model, operators)  # before the imports, which take seconds: the graph may be unsupported

    from executorch.backends.transforms.remove_clone_ops import RemoveCloneOpsTransform
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    # A reshape of a transposed tensor is a copy and a view. The partitioner sees an int8 operator only between a
    # dequantize and a quantize, and the copy, which changes nothing once a transpose is an operator, comes between.
    without_copies = RemoveCloneOpsTransform(preserve_input_output_copies=True)
    with _partitioner_reasons() as reasons, _without_resize_patterns(), _shared_provenance():
        exported = torch.export.export(module, example_inputs(model), strict=False)
        edge = to_edge_transform_and_lower(
            exported, transform_passes=[without_copies], partitioner=[XnnpackPartitioner()]
        )
    names = {f"{STEP}{number}": node.name or "" for number, node in enumerate(executed(model))}
    placement = _placement(edge.exported_program().graph_module, names, reasons)
    program.write_bytes(edge.to_executorch().buffer)
    return placement


def example_inputs(model: ir.Model) -> tuple[Any, ...]:
    """Zeros with the shapes and types of the graph's inputs."""
    inputs = []
    for value in model.graph.inputs:
        shape, dtype = shape_of(value), value.dtype
        if shape is None or dtype is None:
            raise ValueError(f"input {value.name!r} has no static shape")
        inputs.append(torch.zeros(shape, dtype=getattr(torch, str(dtype.numpy()))))
    return tuple(inputs)


@contextmanager
def _without_resize_patterns() -> Iterator[None]:
    """Keep ExecuTorch from tracing patterns of decomposed bilinear resizing, which takes six seconds.

    There are none: the partitioner keeps bilinear resizing from being decomposed.
    """
    from executorch.backends.xnnpack.partition.graphs import bilinear_2d

    before = bilinear_2d.get_graphs_dict
    bilinear_2d.get_graphs_dict = dict
    try:
        yield
    finally:
        bilinear_2d.get_graphs_dict = before


@contextmanager
def _shared_provenance() -> Iterator[None]:
    """Let the nodes of a graph share the records of what they were made from, which nothing changes.

    Otherwise every pass copies those of all earlier passes, for every node: a sixth of the time of a lowering.
    """
    from torch.fx.traceback import NodeSource

    NodeSource.__deepcopy__ = lambda self, memo: self
    try:
        yield
    finally:
        del NodeSource.__deepcopy__


@contextmanager
def _partitioner_reasons() -> Iterator[dict[str, str]]:
    """Collect why the partitioner does not delegate nodes, by torch node name, from its log."""
    reasons: dict[str, str] = {}

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message: Any = record.msg  # the partitioner logs an object that holds the node and the reason
            if getattr(message, "reason", "") and getattr(message, "node", None) is not None:
                reasons.setdefault(str(message.node.name), str(message.reason))

    log, handler = logging.getLogger(_PARTITIONER_LOG), Handler()
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(logging.DEBUG)
    try:
        yield reasons
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


def _placement(graph_module: Any, names: dict[str, str], reasons: dict[str, str]) -> PlacementRecord:
    """Walk the lowered graph and the graphs of its delegates."""
    handles: dict[int, tuple[str, str]] = {}
    undelegated = []
    delegated = delegates = 0
    for node in graph_module.graph.nodes:
        kind = _kind(node)
        if node.op == "call_function" and not kind.startswith(_NOT_COMPUTING):
            undelegated.append({"node": _onnx_node(node, names), "op": kind, "why": reasons.get(str(node.name), "")})
        if node.op == "get_attr" and hasattr(getattr(graph_module, node.target, None), "original_module"):
            delegates += 1
            for inner in getattr(graph_module, node.target).original_module.graph.nodes:
                if inner.op == "call_function":
                    delegated += not _kind(inner).startswith(_NOT_COMPUTING)
                    handle = int(inner.meta.get("debug_handle", 0))
                    handles.setdefault(handle, (_onnx_node(inner, names), _kind(inner)))
    return PlacementRecord(handles, tuple(undelegated), delegated, delegates)


def _kind(node: Any) -> str:
    name = str(getattr(node.target, "__name__", node.target))
    return name.removeprefix("aten.").removeprefix("quantized_decomposed.")


def _onnx_node(node: Any, names: dict[str, str]) -> str:
    """The name of the ONNX node that a torch node was made for."""
    for path, _ in reversed(list((node.meta.get("nn_module_stack") or {}).values())):
        if path in names:
            return names[path]
    return ""
