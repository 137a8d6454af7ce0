"""Lowering in a child process, and what the vendor's words mean."""

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
from dovetail.targets.compile_in_child import CompileCall, compile_in_child, model_inputs
from dovetail.targets.xnnpack.install import PACKAGES
from dovetail.targets.xnnpack.operators.registry import MOST_AXES
from dovetail.targets.xnnpack.options import XnnpackOptions

PROGRAM, CENSUS = "program", "census"
_MADE_BY = f"executorch {PACKAGES['executorch']}"
# What the runtime says when XNNPACK refuses an operator; Python only learns a number.
_REFUSED = re.compile(
    r"Failed to (?:create|define) .*? with code: \S+|Init failed for backend [^\s:]+|Missing operator: .*"
)
# The runtime names a tensor by a number that is its own.
_UNDEFINED = "Failed to define tensor"
# Where the partitioner gives no reason, because it does not look at such an operator at all.
_REASONS = {
    "native_layer_norm": "XNNPACK has no layer norm",
    "expand_copy": "XNNPACK does not repeat elements",
    "index_select": "XNNPACK does not choose elements by index",
    "slice_copy": "XNNPACK takes slices with a step of one only",
}


def compile_model(
    asked: XnnpackOptions, artifacts: tuple[Artifact, ...], folder: Path, *, plain: bool = False
) -> CompileResult:
    """Export, lower, save and load: a program that does not load is no program.

    ``plain``: operators as a model's author writes them in torch, not as they are best for XNNPACK.
    """
    program, census = folder / "model.pte", folder / "census.json"
    for old in (program, census):
        old.unlink(missing_ok=True)
    call = CompileCall(
        "dovetail.targets.xnnpack.lower:lower_in_child",
        {"model": "model.onnx", "program": program.name, "census": census.name, "plain": plain},
        inputs=model_inputs(artifacts[0].path),
        packages=tuple(PACKAGES),
        who="the ExecuTorch lowering",
        limits=asked.limits,
    )
    result = compile_in_child(call, folder)
    if result.answer is None:
        error = refusal(result.log, result.error, artifacts[0].path)
        return CompileResult(artifacts, error=error, log=result.log, finished=result.finished)
    made = (Artifact(PROGRAM, program, _MADE_BY, shipped=True), Artifact(CENSUS, census))
    placement = _placement(json.loads(census.read_text()), artifacts[0].path)
    return CompileResult((*artifacts, *made), log=result.log, placement=placement)


def refusal(log: str, error: str, emitted: Path) -> str:
    """Why there is no program, in one line: what the runtime printed, and what Python was told."""
    said = list(dict.fromkeys(_REFUSED.findall(log)))
    if any(one.startswith(_UNDEFINED) for one in said):
        said = [*_too_many_axes(emitted), *said]
    return " ".join((f"{'; '.join(said)}: {error}" if said else error).split())[:600]


def _too_many_axes(emitted: Path) -> list[str]:
    """The nodes that write tensors which XNNPACK cannot hold, in the caller's names."""
    found = []
    for node in ir.load(emitted).graph:
        axes = max((len(shape_of(value) or ()) for value in node.outputs), default=0)
        if axes > MOST_AXES and not is_quantize(node) and not is_dequantize(node):
            name = ", ".join(nodes_of(node)) or node.name
            found.append(f"node {name!r} ({node.op_type}) has {axes} axes, XNNPACK takes {MOST_AXES}")
    return found


def _placement(census: Mapping[str, Any], emitted: Path) -> Placement:
    """What runs in XNNPACK and what does not, in the caller's names, with the reason."""
    names = {node.name or "": ", ".join(nodes_of(node)) or node.name or "" for node in ir.load(emitted).graph}
    undelegated = tuple(
        UndelegatedOp(names.get(each["node"], each["node"]), each["op"], each["why"] or _reason(each["op"]))
        for each in census["outside"]
    )
    return Placement(census["delegates"], census["inside"], undelegated)


def _reason(operation: str) -> str:
    return _REASONS.get(operation.partition(".")[0], "XNNPACK has no such operator")
