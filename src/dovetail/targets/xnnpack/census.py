"""What stands in a ``.pte``: every operator of every XNNPACK delegate, with the storage of what it reads and writes.

Read from the file itself. A delegate is a flatbuffer, whose schema comes with the executorch wheel.
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
# How the schema says that an operand is not there.
_NO_VALUE = 2**32 - 1
# flatc writes floats with six decimals. Under another type of the same size it writes all bits.
_SCALE, _SCALE_BITS = "scale:float;", "scale:uint;"


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """Which ONNX node (and torch operator) a debug handle stands for; what stayed outside; how many went inside, in how
    many parts."""

    handles: Mapping[int, tuple[str, str]]
    outside: tuple[Mapping[str, str], ...]
    inside: int
    parts: int = 0


def take_census(program: Path, placed: PlacementRecord) -> dict[str, Any]:
    """Every operator in the file, in order, and what runs outside XNNPACK."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    file = deserialize_pte_binary(program.read_bytes())
    (plan,) = file.program.execution_plan
    blobs = [file.program.backend_delegate_data[d.processed.index].data for d in plan.delegates if d.id == _BACKEND]
    operators = []
    for number, blob in enumerate(blobs):
        operators += _operators(_graph(bytes(blob)), _constants(file.named_data), placed, number)
    return {
        "delegates": len(blobs),
        "inside": placed.inside,
        "outside": list(placed.outside),
        "operators": operators,
        "portable": sorted({f"{each.name}.{each.overload}".rstrip(".") for each in plan.operators}),
    }


def _constants(named: Any) -> Mapping[str, bytes]:
    """The constants of a file by name."""
    if named is None:
        return {}
    return {key: named.buffers[entry.buffer_index] for key, entry in named.pte_data.items()}


def _graph(blob: bytes) -> dict[str, Any]:
    """A delegate's flatbuffer as JSON."""
    from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import XNNHeader
    from executorch.exir._serialize._flatbuffer import _flatc_decompile

    header = XNNHeader.from_bytes(blob[: XNNHeader.EXPECTED_LENGTH])
    start = header.flatbuffer_offset
    with tempfile.TemporaryDirectory(prefix="dovetail-xnnpack-") as name:
        folder = Path(name)
        schema, binary = folder / "schema.fbs", folder / "graph.bin"
        text = importlib.resources.files(_SERIALIZATION).joinpath("schema.fbs").read_text()
        if text.count(_SCALE) != 1:
            raise ValueError("the schema of XNNPACK graphs has changed: no single place says what a scale is")
        schema.write_text(text.replace(_SCALE, _SCALE_BITS))
        binary.write_bytes(blob[start : start + header.flatbuffer_size])
        _flatc_decompile(str(folder), str(schema), str(binary), ["--raw-binary", "--defaults-json"])
        written = re.sub(r": (-?)inf\b", r": \1Infinity", (folder / "graph.json").read_text())
        content: dict[str, Any] = json.loads(written)
        return content


def _operators(
    graph: Mapping[str, Any], constants: Mapping[str, bytes], placed: PlacementRecord, delegate: int
) -> list[Any]:
    stored = [_value(each, graph["constant_data"], constants) for each in graph["xvalues"]]
    values = {value["id"]: value for value in stored}
    found: list[Any] = []
    for each in graph["xnodes"]:
        fields = each["xnode_union"]
        node, op = placed.handles.get(int(each["debug_handle"]), ("", ""))
        inputs = {key: values[i] for key, i in fields.items() if key.endswith("_id") and i in values and i != _NO_VALUE}
        output = inputs.pop("output_id")
        kind = each["xnode_union_type"].removeprefix("_").removeprefix("XNN")
        found.append({"node": node, "op": op, "kind": kind, "delegate": delegate, "inputs": inputs, "output": output})
    return found


def _value(each: Mapping[str, Any], offsets: list[Mapping[str, Any]], constants: Mapping[str, bytes]) -> dict[str, Any]:
    """The storage of a value: its dtype, and its numbers where it has some."""
    union = each["xvalue_union"]
    tensor = union.get("tensor_value", union)
    found = {
        "id": tensor["id_out"],
        "dtype": tensor["datatype"].removeprefix("xnn_datatype_"),
        "constant": tensor["constant_buffer_idx"] != 0,
    }
    numbers = union.get("quant_params", {})
    if union.get("quant_params_type") == "PerTensorQuant":
        scale = np.array(numbers["scale"], np.uint32).view(np.float32)
        found |= {"scale": [float(scale)], "zero_point": numbers["zero_point"]}
    elif union.get("quant_params_type") == "PerChannelQuant":
        key = offsets[numbers["scale_buffer_idx"]]["named_key"]
        scales = np.frombuffer(constants[key], np.float32, numbers["num_scales"])
        found |= {"scale": [float(one) for one in scales], "zero_point": 0}
    return found
