"""The device files of ``xnnpack``: the program, a Python session that runs it, and a script for executor_runner."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from dovetail.backend import MODEL, CompileResult, DeviceCase, DeviceFiles
from dovetail.targets.xnnpack import device_session
from dovetail.targets.xnnpack.compile import PROGRAM

SCRIPT = "run_executor_runner.sh"
_NAMES = "INPUTS: list[str] = []\nOUTPUTS: list[str] = []\n"


def device_files(compiled: CompileResult, case: DeviceCase) -> DeviceFiles:
    """The program, or the QDQ graph if it could not be lowered on this machine, and the scripts that run it."""
    program = [a.path for a in compiled.artifacts if a.name == PROGRAM]
    models = program or [a.path for a in compiled.artifacts if a.name.startswith(MODEL)]
    return DeviceFiles(tuple(models), {"device_session.py": session_text(case), SCRIPT: runner_text(case)})


def session_text(case: DeviceCase) -> str:
    """The session module with the names of inputs and outputs, which a program does not contain."""
    text = Path(device_session.__file__).read_text()
    if _NAMES not in text:
        raise ValueError("device_session.py has no lines INPUTS and OUTPUTS to fill in")
    inputs, outputs = (json.dumps([tensor.name for tensor in tensors]) for tensors in (case.inputs, case.outputs))
    return text.replace(_NAMES, f"INPUTS = {inputs}\nOUTPUTS = {outputs}\n")


def runner_text(case: DeviceCase) -> str:
    """A shell script for a phone that runs executor_runner on every sample and names the outputs for ``verify``."""
    lines = [
        "#!/bin/sh",
        "# Runs the samples of this folder with executor_runner, which is built from ExecuTorch for the device:",
        "#     adb push device /data/local/tmp/device && adb push executor_runner /data/local/tmp/device",
        "#     adb shell 'cd /data/local/tmp/device && sh run_executor_runner.sh ./executor_runner'",
        "#     adb pull /data/local/tmp/device/outputs outputs",
        "set -e",
        "runner=${1:-./executor_runner}",
        'cd "$(dirname "$0")"',
    ]
    for number, files in enumerate(case.samples):
        folder = f"outputs/{number:03d}"
        inputs = shlex.quote(",".join(files[tensor.name] for tensor in case.inputs))
        lines.append(f"mkdir -p {folder}")
        lines.append(f'"$runner" --model_path=model.pte --inputs={inputs} --output_file={folder}/output')
        lines += [f"mv {folder}/output-{i}.bin {folder}/{tensor.file}.raw" for i, tensor in enumerate(case.outputs)]
    return "\n".join(lines) + "\n"
