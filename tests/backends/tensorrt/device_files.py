"""Files as trtexec writes them, made from the layers that the builder printed.

``--exportLayerInfo`` writes the engine inspector's JSON (NVIDIA's documentation of the engine inspector): a list
``Layers`` of objects with ``Format/Datatype``, and ``Bindings``. ``--exportTimes`` writes one object per run, as in
``samples/common/sampleReporting.cpp`` of NVIDIA/TensorRT.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dovetail.targets.tensorrt.layers import Layer, Tensor, parse_layers

# The inspector's long names for the types of the builder's list; its short names are those of the list.
LONG = {"FP8": "Row major linear FP8 format", "Int8": "Row major linear INT8 format",
        "Half": "Row major linear FP16 format", "Float": "Row major linear FP32"}  # fmt: skip

ENDS = ("start", "end")


def layer_info(layers: Path, *, long: bool = False) -> dict[str, Any]:
    """The builder's layer list in the format of the inspector."""
    rows = [_layer(layer, long) for layer in parse_layers(layers.read_text())]
    return {"Layers": rows, "Bindings": ["images", "logits"]}


def _layer(layer: Layer, long: bool) -> dict[str, Any]:
    return {
        "Name": layer.name,
        "LayerType": layer.kind,
        "Inputs": [_tensor(tensor, long) for tensor in layer.inputs],
        "Outputs": [_tensor(tensor, long) for tensor in layer.outputs],
        "Constants": [_tensor(tensor, long) for tensor in layer.constants],
        "TacticName": layer.name,
        "StreamId": 0,
        "Metadata": "\x1f".join(f"[ONNX Layer: {node}]" for node in sorted(layer.nodes)),
    }


def _tensor(tensor: Tensor, long: bool) -> dict[str, Any]:
    dtype = LONG.get(tensor.dtype, tensor.dtype) if long else tensor.dtype
    return {"Name": "t", "Location": "Device", "Dimensions": list(tensor.shape), "Format/Datatype": dtype}


def times(compute_ms: float, runs: int = 3) -> str:
    """One line per run with leading commas, as trtexec writes them."""
    spans = {"Enq": (0.0, 0.1), "H2d": (0.0, 0.2), "Compute": (0.2, 0.2 + compute_ms), "D2h": (1.0, 1.1)}
    lengths = {"h2d": 0.2, "compute": compute_ms, "d2h": 0.1, "latency": compute_ms + 0.3}
    lines = []
    for run in range(runs):
        ends = {
            f"{end}{name}Ms": 10 * run + at for name, span in spans.items() for end, at in zip(ENDS, span, strict=True)
        }
        row = {**ends, **{f"{name}Ms": length for name, length in lengths.items()}}
        lines.append("{ " + ", ".join(f'"{key}" : {number:g}' for key, number in row.items()) + " }")
    return "[\n  " + "\n, ".join(lines) + "\n]\n"


def write(folder: Path, info: Any, compute_ms: float = 0.5) -> None:
    (folder / "layer_info.json").write_text(json.dumps(info, indent=1))
    (folder / "times_000.json").write_text(times(compute_ms))
