"""The layers of an engine as ``trtexec --exportLayerInfo`` writes them: the engine inspector's JSON, detailed.

The form is that of NVIDIA's documentation of the engine inspector (``Layers``, each with ``Name``, ``LayerType``,
``Inputs``, ``Outputs``, ``Format/Datatype``; ``Metadata`` since TensorRT 8.6). No engine could be run here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dovetail.targets.tensorrt.layers import Layer, Tensor, UnreadableError

_NODE = re.compile(r"\[ONNX Layer: ([^\x1e\x1f]*?)\](?=[\x1e\x1f]|\[ONNX Layer: |$)")
# What a format says of the type -> the word of the builder's list; the first that is found counts.
_WORDS = {"fp8": "FP8", "int8": "Int8", "half": "Half", "fp16": "Half", "float": "Float", "fp32": "Float"}
# Layers that multiply, by the inspector's names -> by those of the builder's list.
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
    """The content of a file of JSON; what is none is an error that quotes the line."""
    text = path.read_text(errors="replace")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        written = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        number, line = next((one for one in reversed(written) if one[0] <= error.lineno), (1, ""))
        raise UnreadableError(f"{path.name}, line {number}: {line[:_QUOTED]!r}") from error


def read_layer_info(path: Path) -> tuple[Layer, ...]:
    """The layers in such a file; one of another form is an error that quotes it."""
    content = read_json(path)
    listed = content.get("Layers") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not listed:
        raise UnreadableError(f"{path.name} has no list of layers: {json.dumps(content)[:_QUOTED]!r}")
    return tuple(_layer(one, path.name) for one in listed)


def _layer(one: Any, file: str) -> Layer:
    if isinstance(one, str):
        raise UnreadableError(f"{file} has names only, it wants --profilingVerbosity=detailed: {one[:_QUOTED]!r}")
    try:
        inputs, outputs = (tuple(_tensor(tensor) for tensor in one.get(key, ())) for key in ("Inputs", "Outputs"))
        kind, nodes = str(one["LayerType"]), frozenset(_NODE.findall(one.get("Metadata", "")))
        layer = Layer(str(one["Name"]), _KINDS.get(kind, kind), inputs, _constants(one), outputs, nodes)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableError(f"{file}, layer {json.dumps(one)[:_QUOTED]!r}") from error
    if layer.is_product and not (inputs and outputs):
        raise UnreadableError(f"{file}, a product without inputs or outputs: {json.dumps(one)[:_QUOTED]!r}")
    return layer


def _constants(one: dict[str, Any]) -> tuple[Tensor, ...]:
    """Constants as the builder lists them too, or the one type of all weights."""
    if "Constants" in one:
        return tuple(_tensor(tensor) for tensor in one["Constants"])
    weights = one.get("Weights")
    return (Tensor(_word(weights["Type"]), (int(weights["Count"]),)),) if weights else ()


def _tensor(one: dict[str, Any]) -> Tensor:
    said = one["Datatype"] if "Datatype" in one else one["Format/Datatype"]
    return Tensor(_word(str(said)), tuple(int(size) for size in one.get("Dimensions", ())))


def _word(said: str) -> str:
    return next((word for part, word in _WORDS.items() if part in said.lower()), said)
