"""The vendor's side of compiling, only ever called in a child process: export, lower, save, load, and look inside."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir

from dovetail.model.edit import shape_of
from dovetail.targets.xnnpack.census import PlacementRecord, take_census
from dovetail.targets.xnnpack.module import STEP, build_module, executed
from dovetail.targets.xnnpack.operators.plain import PLAIN
from dovetail.targets.xnnpack.operators.registry import OPERATORS, Operator, torch
from dovetail.targets.xnnpack.session import load_program

_PARTITIONER_LOG = "executorch.backends.xnnpack.partition"
_DELEGATE, _GETITEM = "executorch_call_delegate", "getitem"
# A node of torch as XNNPACK knows it: none of these computes anything.
_NOT_COMPUTING = (_DELEGATE, _GETITEM, "alloc", "make_tensor")


def lower_in_child(model: str, program: str, census: str, plain: bool = False) -> dict[str, Any]:
    """Lower a QDQ graph to a ``.pte``, load it as a device would, and write down what stands in it."""
    placed = lower(ir.load(model), Path(program), PLAIN if plain else OPERATORS)
    load_program(Path(program))
    Path(census).write_text(json.dumps(take_census(Path(program), placed)))
    return {}


def lower(model: ir.Model, program: Path, operators: Mapping[str, Operator] = OPERATORS) -> PlacementRecord:
    """Write the program of a graph, and say which node of it each debug handle belongs to and what stayed outside."""
    module = build_module(model, operators)  # in front of imports that take seconds: it may refuse

    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    exported = torch.export.export(module, example_inputs(model), strict=False)
    with _refusals() as refusals, _without_patterns(model):
        edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    names = {f"{STEP}{number}": node.name or "" for number, node in enumerate(executed(model))}
    placed = _placed(edge.exported_program().graph_module, names, refusals)
    program.write_bytes(edge.to_executorch().buffer)
    return placed


def example_inputs(model: ir.Model) -> tuple[Any, ...]:
    """Zeros of the shapes and types that a graph takes."""
    inputs = []
    for value in model.graph.inputs:
        shape, dtype = shape_of(value), value.dtype
        if shape is None or dtype is None:
            raise ValueError(f"input {value.name!r} has no static shape")
        inputs.append(torch.zeros(shape, dtype=getattr(torch, str(dtype.numpy()))))
    return tuple(inputs)


@contextmanager
def _without_patterns(model: ir.Model) -> Iterator[None]:
    """Keep the vendor from tracing how torch writes bilinear resizing, six seconds a process, where there is none."""
    from executorch.backends.xnnpack.partition.graphs import bilinear_2d

    before = bilinear_2d.get_graphs_dict
    if not any(node.op_type == "Resize" for node in model.graph):
        bilinear_2d.get_graphs_dict = dict
    try:
        yield
    finally:
        bilinear_2d.get_graphs_dict = before


@contextmanager
def _refusals() -> Iterator[dict[str, str]]:
    """Why the partitioner left nodes out, by their names, as it says on its log."""
    found: dict[str, str] = {}

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said: Any = record.msg  # the partitioner logs an object that holds the node and the reason
            if getattr(said, "reason", "") and getattr(said, "node", None) is not None:
                found.setdefault(str(said.node.name), str(said.reason))

    log, listener = logging.getLogger(_PARTITIONER_LOG), Listener()
    before, passed_on = log.level, log.propagate
    log.addHandler(listener)
    log.propagate = False
    log.setLevel(logging.DEBUG)
    try:
        yield found
    finally:
        log.removeHandler(listener)
        log.setLevel(before)
        log.propagate = passed_on


def _placed(graph_module: Any, names: dict[str, str], refusals: dict[str, str]) -> PlacementRecord:
    """Walk the lowered graph and the graphs inside its delegates."""
    handles: dict[int, tuple[str, str]] = {}
    outside = []
    inside = parts = 0
    for node in graph_module.graph.nodes:
        kind = _kind(node)
        if node.op == "call_function" and not kind.startswith(_NOT_COMPUTING):
            outside.append({"node": _step(node, names), "op": kind, "why": refusals.get(str(node.name), "")})
        if node.op == "get_attr" and hasattr(getattr(graph_module, node.target, None), "original_module"):
            parts += 1
            for part in getattr(graph_module, node.target).original_module.graph.nodes:
                if part.op == "call_function":
                    inside += not _kind(part).startswith(_NOT_COMPUTING)
                    handles.setdefault(int(part.meta.get("debug_handle", 0)), (_step(part, names), _kind(part)))
    return PlacementRecord(handles, tuple(outside), inside, parts)


def _kind(node: Any) -> str:
    name = str(getattr(node.target, "__name__", node.target))
    return name.removeprefix("aten.").removeprefix("quantized_decomposed.")


def _step(node: Any, names: dict[str, str]) -> str:
    """The ONNX node that a torch node was made for."""
    for path, _ in reversed(list((node.meta.get("nn_module_stack") or {}).values())):
        if path in names:
            return names[path]
    return ""
