"""Parse the QNN graph that the provider dumps as JSON; anything unexpected in it is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dovetail.encoding import DType, Granularity

# ONNX Runtime appends these suffixes to the names of nodes and tensors that it moves or transposes.
MOVED = re.compile(r"(_token_\d+|_transpose)$")
# The codes of QNN data types in the dump.
_DTYPES = {
    0x408: DType.U8,
    0x308: DType.S8,
    0x416: DType.U16,
    0x316: DType.S16,
    0x332: DType.S32,
    0x404: DType.U4,
    0x304: DType.S4,
    0x216: DType.F16,
    0x232: DType.F32,
}

# The codes of QNN quantization encodings that have more than one scale.
_GRANULARITIES = {
    1: Granularity.AXIS,
    3: Granularity.AXIS,
    5: Granularity.EXPANDED_BLOCK,
    11: Granularity.BLOCK,
}
# Of these, those whose 4-bit integers are stored as int8.
_NARROW = (2, 3, 5, 11)

# The names of the integer scales of expanded blocks, in lower case and without underscores.
_BLOCK_SCALES = ("blocksscale8", "blocksscale16")

# Data types that are not planned: plain integers, booleans, float64.
_NOT_PLANNED = {0x008, 0x016, 0x032, 0x064, 0x108, 0x116, 0x132, 0x164, 0x264, 0x508}


@dataclass(frozen=True, slots=True)
class QnnTensor:
    """One tensor of the dump.

    ``channels``: scale and zero point of every channel, and ``block_scales``: the integer scales of expanded blocks,
    channel by channel; empty in a file that does not have them.
    """

    name: str
    dtype: DType | None
    scale: float
    zero_point: int
    granularity: Granularity = Granularity.TENSOR
    channels: tuple[tuple[float, int], ...] = ()
    block_scales: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class QnnNode:
    """One operator of the dump."""

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QnnGraph:
    """The dumped graph, with its tensors by their names in the emitted graph."""

    tensors: Mapping[str, QnnTensor]
    nodes: tuple[QnnNode, ...]


class DumpError(Exception):
    """The dump does not have the expected format; the message quotes the part that could not be parsed."""


def load_dump(folder: Path) -> QnnGraph:
    """Return the only graph in a dump folder; anything unexpected is an error."""
    files = sorted(f for f in folder.glob("*.json") if not f.name.endswith("tensor_log.json"))
    if len(files) != 1:
        raise DumpError(f"{len(files)} graphs were dumped, expected one")
    return load_graph(files[0])


def load_graph(path: Path) -> QnnGraph:
    """Return the graph of a dump, or of the ``*_net.json`` of Qualcomm's converter, which has the same format."""
    try:
        graph = json.loads(path.read_text())["graph"]
        dumped = graph["tensors"]
        names = {name: name if (plain := MOVED.sub("", name)) in dumped else plain for name in dumped}
        tensors = {names[name]: _tensor(names[name], raw) for name, raw in dumped.items()}
        nodes = tuple(
            QnnNode(name, raw["type"], _renamed(raw["input_names"], names), _renamed(raw["output_names"], names))
            for name, raw in graph["nodes"].items()
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DumpError(f"{path.name}: {type(error).__name__} {error}") from error
    return QnnGraph(tensors, nodes)


def _renamed(dumped: list[str], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(names.get(name, name) for name in dumped)


def _tensor(name: str, raw: dict[str, Any]) -> QnnTensor:
    quantized = raw["quant_params"]
    encoding = int(quantized["encoding"])
    qparams = quantized.get("scale_offset", {"scale": 0.0, "offset": 0})  # none where scales are per channel
    scale = qparams["scale"]
    if scale is None and (
        _GRANULARITIES.get(encoding, Granularity.TENSOR) is not Granularity.TENSOR or _is_dummy(name)
    ):
        scale = 0.0  # bytes of another member of a union, which may be NaN, dumped as null
    tensor = qnn_tensor(name, int(raw["data_type"]), encoding, float(scale), int(qparams["offset"]))
    channels, block_scales = _per_channel(quantized)
    return replace(tensor, channels=channels, block_scales=block_scales)


def _per_channel(quantized: Mapping[str, Any]) -> tuple[tuple[tuple[float, int], ...], tuple[int, ...]]:
    """The scales and zero points of the channels, and the integer scales of blocks, where a file has them.

    Qualcomm's converter and ``qairt-dlc-to-json`` write ``axis_scale_offset``; the record of expanded blocks is taken
    to have the names of QNN's structure.
    """
    for record in quantized.values():
        if not isinstance(record, dict):
            continue
        fields = {str(key).lower().replace("_", ""): value for key, value in record.items()}
        pairs = fields.get("scaleoffsets")
        if isinstance(pairs, list):
            channels = tuple((float(pair["scale"]), -int(pair["offset"])) for pair in pairs)
            blocks: list[Any] = next((fields[key] for key in _BLOCK_SCALES if isinstance(fields.get(key), list)), [])
            return channels, tuple(int(scale) for scale in blocks)
    return (), ()


def _is_dummy(name: str) -> bool:
    """Whether the provider made up a constant, as for a Where whose constant is infinite: it has no finite scale."""
    return name.endswith("_dummy_xq")


def qnn_tensor(name: str, code: int, encoding: int, scale: float, offset: int) -> QnnTensor:
    """A tensor from the codes of its data type and of its encoding."""
    if code not in _DTYPES and code not in _NOT_PLANNED:
        raise DumpError(f"tensor {name!r} has the unknown data type {code:#x}")
    dtype = _DTYPES.get(code)
    if dtype is DType.S8 and encoding in _NARROW:
        dtype = DType.S4
    granularity = _GRANULARITIES.get(encoding, Granularity.TENSOR)
    return QnnTensor(name, dtype, scale, -offset, granularity)
