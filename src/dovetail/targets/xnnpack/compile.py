"""Lower a model in a child process, and turn what the runtime prints into one error message."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from dovetail.backend import Artifact, CompileResult, Placement, UndelegatedOp
from dovetail.model.edit import shape_of
from dovetail.model.origin import nodes_of
from dovetail.qdq.params import is_dequantize, is_quantize
from dovetail.targets.child import ChildResult
from dovetail.targets.tool_call import ToolCall, call_tool, model_inputs
from dovetail.targets.xnnpack.install import IMPORTS, PACKAGES
from dovetail.targets.xnnpack.operators.registry import MOST_AXES
from dovetail.targets.xnnpack.options import XnnpackOptions

PROGRAM, CENSUS = "program", "census"
_MADE_BY = f"executorch {PACKAGES['executorch']}"
# What the runtime prints when XNNPACK rejects an operator; the Python exception has only an error code.
_REJECTED = re.compile(
    r"Failed to (?:create|define) .*? with code: \S+|Init failed for backend [^\s:]+|Missing operator: .*"
)
# Of these, what is about the model; a failed initialization can have any reason.
_DEFINITE = re.compile(r"Failed to (?:create|define) |Missing operator: ")
_OUT_OF_MEMORY = re.compile(r"out_of_memory|MemoryAllocationFailed")
# The runtime identifies the tensor only by an internal number.
_TENSOR_REJECTED = "Failed to define tensor"
_LOAD = 'executorch.runtime.Runtime.get().load_program("model.pte"), or executor_runner --model_path=model.pte'
# The reasons for operators that the partitioner does not consider at all, and so gives no reason for.
_REASONS = {
    "native_layer_norm": "XNNPACK has no layer norm",
    "expand_copy": "XNNPACK has no operator that repeats elements",
    "index_select": "XNNPACK has no operator that selects elements by index",
    "slice_copy": "XNNPACK supports only slices with step 1",
}


def compile_model(
    options: XnnpackOptions, artifacts: tuple[Artifact, ...], folder: Path, *, plain: bool = False
) -> CompileResult:
    """Export, lower, save and load the program; one that does not load is an error.

    ``plain``: map operators to what a model's author writes in torch, not to what is best for XNNPACK.
    """
    program, census = folder / "model.pte", folder / "census.json"
    for stale in (program, census):
        stale.unlink(missing_ok=True)
    call = ToolCall(
        "dovetail.targets.xnnpack.lower:lower_in_child",
        {"model": "model.onnx", "program": program.name, "census": census.name, "plain": plain},
        inputs=model_inputs(artifacts[0].path),
        packages=tuple(PACKAGES),
        who="the ExecuTorch lowering",
        limits=options.limits,
        is_final=_is_final,
        imports=IMPORTS,
    )
    result = call_tool(call, folder)
    if result.answer is None:
        error = error_message(result.log, result.error, artifacts[0].path)
        return CompileResult(artifacts, error=error, log=result.log, finished=result.finished)
    files = (Artifact(PROGRAM, program, _MADE_BY, shipped=True, load=_LOAD), Artifact(CENSUS, census))
    placement = _placement(json.loads(census.read_text()), artifacts[0].path)
    return CompileResult((*artifacts, *files), log=result.log, placement=placement)


def _is_final(result: ChildResult) -> bool:
    """Whether the same call would end in the same way: not where memory ran out, and not without a reason."""
    if result.answer is not None:
        return True
    return _DEFINITE.search(result.log) is not None and _OUT_OF_MEMORY.search(result.log) is None


def error_message(log: str, error: str, emitted: Path) -> str:
    """Why no program was made, in one line: what the runtime printed, and the Python exception."""
    printed = list(dict.fromkeys(_REJECTED.findall(log)))
    if any(line.startswith(_TENSOR_REJECTED) for line in printed):
        printed = [*_too_many_axes(emitted), *printed]
    return " ".join((f"{'; '.join(printed)}: {error}" if printed else error).split())[:600]


def _too_many_axes(emitted: Path) -> list[str]:
    """A message for every node whose output has more axes than XNNPACK supports, by its original name."""
    messages = []
    for node in ir.load(emitted).graph:
        axes = max((len(shape_of(value) or ()) for value in node.outputs), default=0)
        if axes > MOST_AXES and not is_quantize(node) and not is_dequantize(node):
            name = ", ".join(nodes_of(node)) or node.name
            messages.append(f"node {name!r} ({node.op_type}) has {axes} axes, XNNPACK supports at most {MOST_AXES}")
    return messages


def _placement(census: Mapping[str, Any], emitted: Path) -> Placement:
    """Which operators are delegated to XNNPACK, and which are not and why, by their original names."""
    names = {node.name or "": ", ".join(nodes_of(node)) or node.name or "" for node in ir.load(emitted).graph}
    undelegated = tuple(
        UndelegatedOp(names.get(row["node"], row["node"]), row["op"], row["why"] or _reason(row["op"]))
        for row in census["outside"]
    )
    return Placement(census["delegates"], census["inside"], undelegated)


def _reason(op: str) -> str:
    return _REASONS.get(op.partition(".")[0], "XNNPACK has no such operator")
