"""Read what trtexec writes beside the outputs on a GPU: the layers of the engine that ran, and times."""

from __future__ import annotations

import statistics
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import CompileResult, DeviceLatency, DeviceReport, ReadBack
from dovetail.finding import Finding
from dovetail.storage import Plan
from dovetail.targets.tensorrt.compile import FLOAT16_LAYERS, notes_on
from dovetail.targets.tensorrt.coverage import CODES, find_blocks, findings
from dovetail.targets.tensorrt.device_session import LAYER_INFO
from dovetail.targets.tensorrt.layer_info import read_json, read_layer_info
from dovetail.targets.tensorrt.layers import Layer, UnreadableError, parse_layers
from dovetail.targets.tensorrt.read_back import as_planned
from dovetail.targets.tensorrt.unquantized import UnquantizedModel, unquantized

TIMES = "times_*.json"
_EVIDENCE = f"{LAYER_INFO}, the layers of the engine that ran on the device, exported by trtexec"
_SOURCE = "trtexec --exportTimes"


def read_device(outputs: Path, compiled: CompileResult, plan: Plan) -> DeviceReport:
    """The fusions and types of the engine that ran, and its latency; the report quotes a line that cannot be read."""
    read_back, device_findings, notes = _layers(outputs / LAYER_INFO, compiled, plan)
    try:
        return DeviceReport(read_back, device_findings, CODES, notes, latency=_latency(outputs))
    except UnreadableError as error:
        return DeviceReport(read_back, device_findings, CODES, notes, not_measured=str(error))


def _layers(
    path: Path, compiled: CompileResult, plan: Plan
) -> tuple[ReadBack | None, tuple[Finding, ...], tuple[str, ...]]:
    if not path.is_file():
        return None, (), ()
    float16_layers = next((a.path for a in compiled.artifacts if a.name == FLOAT16_LAYERS), None)
    plain = unquantized(ir.load(compiled.artifacts[0].path))
    try:
        built = read_layer_info(path)
        in_float16 = parse_layers(float16_layers.read_text()) if float16_layers is not None else None
        _require_nodes_of_model(built, plain)
    except UnreadableError as error:
        return ReadBack((), _EVIDENCE, unparsed=str(error)), (), ()
    blocks = find_blocks(plain, built, in_float16)
    return as_planned(plain, blocks, built, plan, _EVIDENCE), findings(blocks), notes_on(blocks, built, in_float16)


def _require_nodes_of_model(built: tuple[Layer, ...], plain: UnquantizedModel) -> None:
    """Refuse a list that names no node of the model: it is that of another engine, or it has no metadata."""
    names = {name for layer in built for name in layer.nodes}
    if not names:
        raise UnreadableError(f"no layer of {LAYER_INFO} names its ONNX nodes in its Metadata")
    if names.isdisjoint(node.name for node in plain.model.graph):
        raise UnreadableError(
            f"{LAYER_INFO} is of another engine: none of its nodes is in this model, the first is {min(names)!r}"
        )


def _latency(outputs: Path) -> DeviceLatency | None:
    """The median latency over all runs of all samples."""
    rows: list[tuple[float, float]] = []
    for path in sorted(outputs.glob(TIMES)):
        content = read_json(path)
        for row in content if isinstance(content, list) else [content]:
            try:
                rows.append((float(row["computeMs"]), float(row["latencyMs"])))
            except (KeyError, TypeError, ValueError) as error:
                raise UnreadableError(
                    f"{path.name}: a run without computeMs and latencyMs: {str(row)[:120]!r}"
                ) from error
    if not rows:
        return None
    compute_us, total_us = (statistics.median(column) * 1e3 for column in zip(*rows, strict=True))
    return DeviceLatency(compute_us, total_us, len(rows), _SOURCE)
