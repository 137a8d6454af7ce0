"""Files as Qualcomm's converter writes them, made from the graph that the real HTP compiler dumps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dovetail.backend import Artifact
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qairt.converted import converter_name
from dovetail.targets.qairt.model_cpp import _DATA_TYPES, _ENCODINGS
from dovetail.targets.qnn_htp.compile import GRAPH, compile_model
from dovetail.targets.qnn_htp.options import read_options

# What ONNX Runtime appends to the names of tensors that it moves, and of weights that it transposes.
MOVED_NAME = re.compile(r'(?:_token_\d+|(?<=__q)_transpose)"')
FLOAT_32, FLOAT_16 = 0x232, 0x216


def dumped(model: Path, folder: Path, chip: str = "sm8650") -> dict[str, Any]:
    """The graph that the real compiler dumps for an emitted model."""
    folder.mkdir()
    compiled = compile_model(read_options(chip_named(chip), {}), (Artifact("model", model),), folder)
    assert not compiled.error, compiled.error
    path = next(artifact.path for artifact in compiled.artifacts if artifact.name == GRAPH)
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


def as_converted(document: dict[str, Any]) -> dict[str, Any]:
    """The same graph with the names of the converter, which has one per tensor and no Q and DQ, and in float16."""
    graph = json.loads(MOVED_NAME.sub('"', json.dumps(document)))["graph"]
    tensors: dict[str, Any] = {}
    for name, tensor in graph["tensors"].items():
        if tensor["data_type"] == FLOAT_32:
            tensor["data_type"] = FLOAT_16
        if name.endswith("__q") or f"{name}__q" not in graph["tensors"]:
            tensors[_named(name)] = tensor
    nodes = {
        converter_name(name): {
            **node,
            "input_names": list(map(_named, node["input_names"])),
            "output_names": list(map(_named, node["output_names"])),
        }
        for name, node in graph["nodes"].items()
        if node["type"] not in ("Quantize", "Dequantize")
    }
    return {"graph": {"tensors": tensors, "nodes": nodes}}


def _named(name: str) -> str:
    return converter_name(name.removesuffix("__q").replace("__dq", "_converted_QNN_DATATYPE_FLOAT_16"))


def as_model_cpp(document: dict[str, Any]) -> str:
    """A graph as C++ calls, in the form of the converter's generated files."""
    graph = document["graph"]
    written = {name for node in graph["nodes"].values() for name in node["output_names"]}
    parts = ['extern "C" {']
    for name, tensor in graph["tensors"].items():
        if name not in written:
            parts.append(
                f"static ModelError_t addTensor_t(QnnModel& model){{\n{_tensor(name, tensor)}\n  return err;\n}}"
            )
    for name, node in graph["nodes"].items():
        outputs = ",\n".join(_tensor(output, graph["tensors"][output]) for output in node["output_names"])
        inputs = ",\n".join(f'    "{each}"' for each in node["input_names"])
        parts.append(
            f"static ModelError_t addNode_n(QnnModel& model){{\n"
            f"  const char*  inputs_n[] = {{\n{inputs}\n  }};\n"
            f"  Qnn_Tensor_t outputs_n[] = {{\n{outputs}\n  }};\n"
            f'  VALIDATE(model.addNode(QNN_OPCONFIG_VERSION_1, // Op_Config_t Version\n"{name}", // Node Name\n'
            f'"qti.aisw", // Package Name\n"{node["type"]}", // Qnn Node Type\n  ), err);\n  return err;\n}}'
        )
    return "\n".join(parts)


def with_channels(document: dict[str, Any], name: str, scales: Iterable[float]) -> dict[str, Any]:
    """The graph with the scales of the channels of one tensor, as the converter and qairt-dlc-to-json write them."""
    params = document["graph"]["tensors"][name]["quant_params"]
    pairs = [{"scale": float(scale), "offset": 0, "bitwidth": 8} for scale in scales]
    params["axis_scale_offset"] = {"axis": 3, "num_scale_offsets": len(pairs), "scale_offsets": pairs}
    return document


def _tensor(name: str, tensor: dict[str, Any]) -> str:
    types = {code: text for text, code in _DATA_TYPES.items()}
    encodings = {code: text for text, code in _ENCODINGS.items()}
    params = tensor["quant_params"]
    scale = params["scale_offset"]
    encoding = encodings.get(params["encoding"], "UNDEFINED")
    values = f".scaleOffsetEncoding= {{.scale= {scale['scale']:.20f}f, .offset= {scale['offset']}}}"
    listed = ""
    if "axis_scale_offset" in params:
        pairs = params["axis_scale_offset"]["scale_offsets"]
        body = ", ".join(f"{{.scale= {pair['scale']:.40f}f, .offset= {pair['offset']}}}" for pair in pairs)
        listed = f"  Qnn_ScaleOffset_t scaleOffset_{name}[] = {{{body}}};\n"
        values = (
            f".axisScaleOffsetEncoding= {{.axis= 3, .numScaleOffsets= {len(pairs)}, .scaleOffset=scaleOffset_{name}}}"
        )
    return (
        f'{listed}  {{.id=0,\n.name= "{name}",\n'
        ".type= QNN_TENSOR_TYPE_NATIVE,\n.dataFormat= QNN_TENSOR_DATA_FORMAT_DENSE,\n"
        f".dataType= QNN_DATATYPE_{types[tensor['data_type']]},\n.quantizeParams= {{ QNN_DEFINITION_DEFINED,\n"
        f"QNN_QUANTIZATION_ENCODING_{encoding},\n"
        f"{{{values}}}}},\n.rank= 4,}}"
    )
