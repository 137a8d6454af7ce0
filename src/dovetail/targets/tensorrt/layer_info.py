"""Parse the layers that ``trtexec --exportLayerInfo`` writes: the engine inspector's JSON, in detailed verbosity.

The format is that of NVIDIA's documentation of the engine inspector (``Layers``, each with ``Name``, ``LayerType``,
``Inputs``, ``Outputs``, ``Format/Datatype``; ``Metadata`` since TensorRT 8.6). It was not tried on a GPU.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dovetail.targets.tensorrt.layers import Layer, Tensor, UnreadableError

_NODE = re.compile(r"\[ONNX Layer: ([^\x1e\x1f]*?)\](?=[\x1e\x1f]|\[ONNX Layer: |$)")
# Part of the inspector's format string -> the type name of the builder's layer list; the first match counts.
_TYPE_NAMES = {"fp8": "FP8", "int8": "Int8", "half": "Half", "fp16": "Half", "float": "Float", "fp32": "Float"}
# The inspector's names for layers that run matrix operations -> those of the builder's layer list.
_KINDS = {
    "CaskConvolution": "correlation",
    "CaskGemmConvolution": "gemm",
    "CaskGemmMatrixMultiply": "gemm",
    "Convolution": "correlation",
    "MatrixMultiply": "gemm",
    "fusion": "runtime_fusion",
}
_QUOTED = 160


def read_json(path: Path) -> Any:
    """Read a JSON file; invalid JSON raises an error that quotes the line."""
    text = path.read_text(errors="replace")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        number, line = next((entry for entry in reversed(lines) if entry[0] <= error.lineno), (1, ""))
        raise UnreadableError(f"{path.name} is not valid JSON, line {number}: {line[:_QUOTED]!r}") from error


def read_layer_info(path: Path) -> tuple[Layer, ...]:
    """Read the layers in such a file; a layer in an unknown format raises an error that quotes it."""
    content = read_json(path)
    layers = content.get("Layers") if isinstance(content, dict) else None
    if not isinstance(layers, list) or not layers:
        raise UnreadableError(f"{path.name} has no list of layers: {json.dumps(content)[:_QUOTED]!r}")
    return tuple(_layer(entry, path.name) for entry in layers)


def _layer(entry: Any, file: str) -> Layer:
    if isinstance(entry, str):
        raise UnreadableError(
            f"{file} has only names of layers, export it with --profilingVerbosity=detailed: {entry[:_QUOTED]!r}"
        )
    try:
        inputs, outputs = (tuple(_tensor(tensor) for tensor in entry.get(key, ())) for key in ("Inputs", "Outputs"))
        kind, nodes = str(entry["LayerType"]), frozenset(_NODE.findall(entry.get("Metadata", "")))
        layer = Layer(str(entry["Name"]), _KINDS.get(kind, kind), inputs, _constants(entry), outputs, nodes)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableError(f"{file}: unknown format of layer {json.dumps(entry)[:_QUOTED]!r}") from error
    if layer.is_matrix_op and not (inputs and outputs):
        raise UnreadableError(f"{file}: a matrix operation without inputs or outputs: {json.dumps(entry)[:_QUOTED]!r}")
    return layer


def _constants(entry: dict[str, Any]) -> tuple[Tensor, ...]:
    """The constants listed as in the builder's layer list, or the one type of all weights."""
    if "Constants" in entry:
        return tuple(_tensor(tensor) for tensor in entry["Constants"])
    weights = entry.get("Weights")
    return (Tensor(_type_name(weights["Type"]), (int(weights["Count"]),)),) if weights else ()


def _tensor(entry: dict[str, Any]) -> Tensor:
    format_string = entry["Datatype"] if "Datatype" in entry else entry["Format/Datatype"]
    return Tensor(_type_name(str(format_string)), tuple(int(size) for size in entry.get("Dimensions", ())))


def _type_name(format_string: str) -> str:
    return next((name for part, name in _TYPE_NAMES.items() if part in format_string.lower()), format_string)
