"""Parse the ``model.cpp`` that Qualcomm's converter generates: tensors with data type and encoding, and nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dovetail.targets.qnn_htp.dump import DumpError, QnnGraph, QnnNode, QnnTensor, qnn_tensor

# QNN's names of data types and encodings -> the codes that its JSON files have.
_DATA_TYPES = {
    "UFIXED_POINT_4": 0x404,
    "UFIXED_POINT_8": 0x408,
    "UFIXED_POINT_16": 0x416,
    "SFIXED_POINT_4": 0x304,
    "SFIXED_POINT_8": 0x308,
    "SFIXED_POINT_16": 0x316,
    "SFIXED_POINT_32": 0x332,
    "FLOAT_16": 0x216,
    "FLOAT_32": 0x232,
    "FLOAT_64": 0x264,
    "INT_8": 0x008,
    "INT_16": 0x016,
    "INT_32": 0x032,
    "INT_64": 0x064,
    "UINT_8": 0x108,
    "UINT_16": 0x116,
    "UINT_32": 0x132,
    "UINT_64": 0x164,
    "BOOL_8": 0x508,
}
_ENCODINGS = {
    "SCALE_OFFSET": 0,
    "AXIS_SCALE_OFFSET": 1,
    "BW_SCALE_OFFSET": 2,
    "BW_AXIS_SCALE_OFFSET": 3,
    "BLOCKWISE_EXPANSION": 5,
    "BLOCK": 11,
    "UNDEFINED": 0x7FFFFFFF,
}
_TENSOR = re.compile(
    r'\.name= "(?P<name>[^"]+)",\s*\.type= \w+,.*?\.dataType= QNN_DATATYPE_(?P<type>\w+),\s*'
    r"\.quantizeParams= \{ \w+,\s*QNN_QUANTIZATION_ENCODING_(?P<encoding>\w+),\s*\{(?P<rest>[^;]*?)\.rank=",
    re.DOTALL,
)
_SCALE = re.compile(r"\.scaleOffsetEncoding= \{\.scale= (?P<scale>[^,]+?)f?, \.offset= (?P<offset>-?\d+)\}")
_CHANNELS = re.compile(r"Qnn_ScaleOffset_t\s+(?P<name>\w+)\[\]\s*=\s*\{(?P<body>.*?)\};", re.DOTALL)
_PAIR = re.compile(r"\.scale= (?P<scale>[^,]+?)f?, \.offset= (?P<offset>-?\d+)")
_AXIS = re.compile(r"\.axisScaleOffsetEncoding= \{[^}]*\.scaleOffset=\s*(?P<name>\w+)\}")
_LIST = re.compile(r"const char\*\s+inputs_\w+\[\] = \{(?P<names>[^}]*)\};")
_OUTPUTS = re.compile(r"Qnn_Tensor_t outputs_\w+\[\] = \{(?P<body>.*?)\n  \};", re.DOTALL)
_NODE = re.compile(r"static ModelError_t addNode_\w+\(QnnModel& model\)\{(?P<body>.*?)\n\}", re.DOTALL)
_ADDED = re.compile(r'addNode\([^"]*"(?P<name>[^"]+)",[^"]*"[^"]*",[^"]*"(?P<type>[^"]+)"')
_QUOTED = re.compile(r'"([^"]+)"')


def load_model_cpp(path: Path) -> QnnGraph:
    """Return the graph of a generated file; one without tensors is an error."""
    text = path.read_text(errors="replace")
    channels = {match["name"]: match["body"] for match in _CHANNELS.finditer(text)}
    tensors = {match["name"]: _tensor(match, channels) for match in _TENSOR.finditer(text)}
    if not tensors:
        raise DumpError(f"{path.name}: no tensor was found, so that this is no model.cpp of QAIRT's converter")
    return QnnGraph(tensors, tuple(_node(match["body"], path) for match in _NODE.finditer(text)))


def _tensor(match: re.Match[str], channels: Mapping[str, str]) -> QnnTensor:
    name, kind = match["name"], match["type"]
    if kind not in _DATA_TYPES:
        raise DumpError(f"tensor {name!r} has the unknown data type {kind}")
    if match["encoding"] not in _ENCODINGS:
        raise DumpError(f"tensor {name!r} has the unknown encoding {match['encoding']}")
    pairs = [_pair(name, found) for found in _SCALE.finditer(match["rest"])]
    tensor = qnn_tensor(name, _DATA_TYPES[kind], _ENCODINGS[match["encoding"]], *(pairs[0] if pairs else (0.0, 0)))
    axis = _AXIS.search(match["rest"])
    listed = "" if axis is None else channels.get(axis["name"], "")
    per_channel = (_pair(name, found) for found in _PAIR.finditer(listed))
    return replace(tensor, channels=tuple((scale, -offset) for scale, offset in per_channel))


def _pair(name: str, match: re.Match[str]) -> tuple[float, int]:
    """A scale and an offset."""
    try:
        return float(match["scale"]), int(match["offset"])
    except ValueError as error:
        raise DumpError(f"tensor {name!r} has a scale that is no number: {match['scale']}") from error


def _node(body: str, path: Path) -> QnnNode:
    added, outputs, inputs = _ADDED.search(body), _OUTPUTS.search(body), _LIST.search(body)
    if added is None or outputs is None:
        raise DumpError(f"{path.name}: a node could not be parsed: {body.strip()[:80]!r}")
    names = tuple(_QUOTED.findall(inputs["names"])) if inputs else ()
    return QnnNode(added["name"], added["type"], names, tuple(re.findall(r'\.name= "([^"]+)"', outputs["body"])))
