"""The device files of ``tensorrt``: the engine, the ONNX file, a session that runs trtexec, and its command lines."""

from __future__ import annotations

import shlex
from pathlib import Path

from dovetail.backend import MODEL, CompileResult, DeviceCase, DeviceFiles
from dovetail.targets.tensorrt import device_session
from dovetail.targets.tensorrt.compile import ENGINE

COMMANDS = "trtexec.sh"


def device_files(compiled: CompileResult, case: DeviceCase) -> DeviceFiles:
    """The files of the model, the engine first if there is one, and the scripts that run them."""
    engine = [a.path for a in compiled.artifacts if a.name == ENGINE]
    shipped = sorted(
        (a.path for a in compiled.artifacts if a.name.startswith(MODEL)), key=lambda p: p.suffix != ".onnx"
    )
    models = (*engine, *shipped)
    texts = {"device_session.py": Path(device_session.__file__).read_text(), COMMANDS: commands(models[0].name, case)}
    return DeviceFiles(models, texts)


def commands(model: str, case: DeviceCase) -> str:
    """A shell script that calls trtexec once per sample and exports the files that ``dovetail verify`` reads."""
    load = f"--loadEngine={model}" if not model.endswith(".onnx") else f"--onnx={model}"
    lines = ["#!/bin/sh", "# TRTEXEC: tensorrt_rtx of the TensorRT-RTX SDK, or trtexec", "mkdir -p outputs"]
    for number, files in enumerate(case.samples):
        inputs = ",".join(f"{_quoted(name)}:{path}" for name, path in files.items())
        arguments = [load, f"--loadInputs={inputs}", f"--exportOutput=outputs/{number:03d}.json"]
        arguments += device_session.exports("outputs", number)
        lines.append(f'"${{TRTEXEC:-tensorrt_rtx}}" {" ".join(shlex.quote(argument) for argument in arguments)}')
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    """Put single quotes around a name with a colon or a comma, as trtexec requires."""
    return f"'{name}'" if {":", ","} & set(name) else name
