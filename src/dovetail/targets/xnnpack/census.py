"""List the operators of every XNNPACK delegate in a ``.pte`` file, with the dtypes and qparams of inputs and outputs.

The list is read from the file itself. A delegate is a flatbuffer, whose schema comes with the executorch wheel.
"""

from __future__ import annotations

import importlib.resources
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_BACKEND = "XnnpackBackend"
_SERIALIZATION = "executorch.backends.xnnpack.serialization"
# The id that the schema has for an absent operand.
_NO_VALUE = 2**32 - 1
# flatc prints floats with six decimals. Declared as another type of the same size, it prints all bits.
_SCALE, _SCALE_BITS = "scale:float;", "scale:uint;"


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """Where the operators of a lowered graph run.

    ``handles``: debug handle -> ONNX node and torch operator. ``outside``: the operators that are not delegated.
    ``inside``: the number of delegated operators. ``parts``: the number of delegates.
    """

    handles: Mapping[int, tuple[str, str]]
    outside: tuple[Mapping[str, str], ...]
    inside: int
    parts: int = 0


def list_operators(program: Path, placement: PlacementRecord) -> dict[str, Any]:
    """The operators of all delegates in the file, in order, and the operators that are not delegated."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    file = deserialize_pte_binary(program.read_bytes())
    (plan,) = file.program.execution_plan
    blobs = [file.program.backend_delegate_data[d.processed.index].data for d in plan.delegates if d.id == _BACKEND]
    operators = []
    for number, blob in enumerate(blobs):
        operators += _operators(_graph(bytes(blob)), _constants(file.named_data), placement, number)
    return {
        "delegates": len(blobs),
        "inside": placement.inside,
        "outside": list(placement.outside),
        "operators": operators,
        "portable": sorted({f"{operator.name}.{operator.overload}".rstrip(".") for operator in plan.operators}),
    }


def _constants(named_data: Any) -> Mapping[str, bytes]:
    """The constants of a file by name."""
    if named_data is None:
        return {}
    return {key: named_data.buffers[entry.buffer_index] for key, entry in named_data.pte_data.items()}


def _graph(blob: bytes) -> dict[str, Any]:
    """Convert the flatbuffer of a delegate to JSON."""
    from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import XNNHeader
    from executorch.exir._serialize._flatbuffer import _flatc_decompile

    header = XNNHeader.from_bytes(blob[: XNNHeader.EXPECTED_LENGTH])
    start = header.flatbuffer_offset
    with tempfile.TemporaryDirectory(prefix="dovetail-xnnpack-") as name:
        folder = Path(name)
        schema, binary = folder / "schema.fbs", folder / "graph.bin"
        text = importlib.resources.files(_SERIALIZATION).joinpath("schema.fbs").read_text()
        if text.count(_SCALE) != 1:
            raise ValueError(f"the schema of XNNPACK graphs has changed: expected {_SCALE!r} in exactly one place")
        schema.write_text(text.replace(_SCALE, _SCALE_BITS))
        binary.write_bytes(blob[start : start + header.flatbuffer_size])
        _flatc_decompile(str(folder), str(schema), str(binary), ["--raw-binary", "--defaults-json"])
        text = re.sub(r": (-?)inf\b", r": \1Infinity", (folder / "graph.json").read_text())
        content: dict[str, Any] = json.loads(text)
        return content


def _operators(
    graph: Mapping[str, Any], constants: Mapping[str, bytes], placement: PlacementRecord, delegate: int
) -> list[Any]:
    rows = [_value(value, graph["constant_data"], constants) for value in graph["xvalues"]]
    values = {value["id"]: value for value in rows}
    operators: list[Any] = []
    for xnode in graph["xnodes"]:
        fields = xnode["xnode_union"]
        node, op = placement.handles.get(int(xnode["debug_handle"]), ("", ""))
        inputs = {key: values[i] for key, i in fields.items() if key.endswith("_id") and i in values and i != _NO_VALUE}
        output = inputs.pop("output_id")
        kind = xnode["xnode_union_type"].removeprefix("_").removeprefix("XNN")
        row = {"node": node, "op": op, "kind": kind, "delegate": delegate, "inputs": inputs, "output": output}
        operators.append(row)
    return operators


def _value(
    xvalue: Mapping[str, Any], offsets: list[Mapping[str, Any]], constants: Mapping[str, bytes]
) -> dict[str, Any]:
    """The dtype of a value, and its scale and zero point if it is quantized."""
    union = xvalue["xvalue_union"]
    tensor = union.get("tensor_value", union)
    row = {
        "id": tensor["id_out"],
        "dtype": tensor["datatype"].removeprefix("xnn_datatype_"),
        "constant": tensor["constant_buffer_idx"] != 0,
    }
    qparams = union.get("quant_params", {})
    if union.get("quant_params_type") == "PerTensorQuant":
        scale = np.array(qparams["scale"], np.uint32).view(np.float32)
        row |= {"scale": [float(scale)], "zero_point": qparams["zero_point"]}
    elif union.get("quant_params_type") == "PerChannelQuant":
        key = offsets[qparams["scale_buffer_idx"]]["named_key"]
        scales = np.frombuffer(constants[key], np.float32, qparams["num_scales"])
        row |= {"scale": [float(scale) for scale in scales], "zero_point": 0}
    return row
