"""The QNN graph that the provider dumps: its tensors and operators, and nothing that was not understood."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.encoding import DType

# What ONNX Runtime moves to another place or turns (channels-last, a weight) keeps its name with such a suffix.
MOVED = re.compile(r"(_token_\d+|_transpose)$")
# QNN's numbers for data types, as they stand in the dump.
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


# Those in which nothing is planned: whole numbers, truth values, float64.
_NOT_STORED = {0x008, 0x016, 0x032, 0x064, 0x108, 0x116, 0x132, 0x164, 0x264, 0x508}


@dataclass(frozen=True, slots=True)
class QnnTensor:
    """One tensor of the dump."""

    name: str
    dtype: DType | None
    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True)
class QnnNode:
    """One operator of the dump."""

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QnnGraph:
    """The dumped graph, its tensors by the names they had in the emitted one."""

    tensors: Mapping[str, QnnTensor]
    nodes: tuple[QnnNode, ...]


class DumpError(Exception):
    """The dump is not what it was in the versions this was written for; the text has the offending part."""


def load_dump(folder: Path) -> QnnGraph:
    """The one graph in a dump folder; anything unexpected is said, never passed over."""
    files = sorted(f for f in folder.glob("*.json") if not f.name.endswith("tensor_log.json"))
    if len(files) != 1:
        raise DumpError(f"{len(files)} graphs were dumped, one was expected")
    try:
        graph = json.loads(files[0].read_text())["graph"]
        given = graph["tensors"]
        names = {name: name if (plain := MOVED.sub("", name)) in given else plain for name in given}
        tensors = {names[name]: _tensor(names[name], raw) for name, raw in given.items()}
        nodes = tuple(
            QnnNode(name, raw["type"], _renamed(raw["input_names"], names), _renamed(raw["output_names"], names))
            for name, raw in graph["nodes"].items()
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DumpError(f"{files[0].name}: {type(error).__name__} {error}") from error
    return QnnGraph(tensors, nodes)


def _renamed(given: list[str], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(names.get(name, name) for name in given)


def _tensor(name: str, raw: dict[str, Any]) -> QnnTensor:
    numbers, code = raw["quant_params"]["scale_offset"], int(raw["data_type"])
    if code not in _DTYPES and code not in _NOT_STORED:
        raise DumpError(f"tensor {name!r} has the unknown data type {code:#x}")
    return QnnTensor(name, _DTYPES.get(code), float(numbers["scale"]), -int(numbers["offset"]))
