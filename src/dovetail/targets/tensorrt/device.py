"""The device side of ``tensorrt``: the engine, the ONNX file, a session by the SDK's tool, and its command lines."""

from __future__ import annotations

import shlex
from pathlib import Path

from dovetail.backend import MODEL, CompileResult, DeviceCase, DeviceFiles
from dovetail.targets.tensorrt import device_session
from dovetail.targets.tensorrt.compile import ENGINE

COMMANDS = "trtexec.sh"


def device_side(compiled: CompileResult, case: DeviceCase) -> DeviceFiles:
    """The files of the model, the engine first where there is one, and the texts that run them."""
    engine = [a.path for a in compiled.artifacts if a.name == ENGINE]
    shipped = sorted(
        (a.path for a in compiled.artifacts if a.name.startswith(MODEL)), key=lambda p: p.suffix != ".onnx"
    )
    models = (*engine, *shipped)
    texts = {"device_session.py": Path(device_session.__file__).read_text(), COMMANDS: commands(models[0].name, case)}
    return DeviceFiles(models, texts)


def commands(model: str, case: DeviceCase) -> str:
    """One call of the tool per sample; what it exports is what ``dovetail verify`` reads."""
    load = f"--loadEngine={model}" if not model.endswith(".onnx") else f"--onnx={model}"
    lines = ["#!/bin/sh", "# TRTEXEC: tensorrt_rtx of the TensorRT-RTX SDK, or trtexec", "mkdir -p outputs"]
    for number, files in enumerate(case.samples):
        inputs = ",".join(f"{_quoted(name)}:{path}" for name, path in files.items())
        words = [load, f"--loadInputs={inputs}", f"--exportOutput=outputs/{number:03d}.json"]
        words += device_session.exports("outputs", number)
        lines.append(f'"${{TRTEXEC:-tensorrt_rtx}}" {" ".join(shlex.quote(word) for word in words)}')
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    """The tool wants single quotes around a name with a colon or a comma."""
    return f"'{name}'" if {":", ","} & set(name) else name
