"""Run a TensorRT-RTX engine on its GPU with the command line tool of the SDK.

Requires numpy and the tool ``tensorrt_rtx`` (or ``trtexec``), on the PATH or named by the argument ``backend`` or the
environment variable TRTEXEC. An engine that was built ahead of time is compiled for the GPU when it is loaded.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TOOLS = ("tensorrt_rtx", "trtexec")
# `dovetail verify` reads these files beside the outputs: the layers of the engine that ran, and every sample's times.
LAYER_INFO, DETAILED = "layer_info.json", "--profilingVerbosity=detailed"
_RUNS = 50
_exported: list[Path] = []


def export_to(folder: Path) -> None:
    """Also write layers and times to a folder, from the next run on."""
    _exported.append(folder)


def exports(folder: str, number: int) -> list[str]:
    """The arguments that make the tool write them."""
    return [f"--exportTimes={folder}/times_{number:03d}.json", f"--exportLayerInfo={folder}/{LAYER_INFO}", DETAILED]


def find_tool(backend: str = "") -> str:
    """The path of the tool; an error if there is none."""
    tool = backend or os.environ.get("TRTEXEC", "")
    tool = tool or next((path for name in TOOLS if (path := shutil.which(name))), "")
    if not tool:
        raise FileNotFoundError(f"none of {', '.join(TOOLS)} is on the PATH: pass --backend PATH or set TRTEXEC")
    return tool


def open_model(model: str, backend: str = "") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Open a model as a function from inputs by name to outputs by name."""
    tool = find_tool(backend)
    sample_numbers = itertools.count()

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            files = []
            for number, (key, array) in enumerate(inputs.items()):
                path = folder / f"{number}.raw"
                path.write_bytes(np.ascontiguousarray(array).tobytes())
                files.append(f"'{key}':{path}")
            exported = folder / "outputs.json"
            load = f"--loadEngine={model}" if not model.endswith(".onnx") else f"--onnx={model}"
            command = [tool, load, f"--loadInputs={','.join(files)}", f"--exportOutput={exported}"]
            command += [f"--iterations={_RUNS if _exported else 1}", "--duration=0"]
            command += exports(str(_exported[-1]), next(sample_numbers)) if _exported else []
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return read_export(exported)

    return run


def read_export(path: Path) -> dict[str, Any]:
    """Read the outputs that the tool exported: a list of name, dimensions as ``1x10``, values."""
    text = re.sub(r"(?<=[\s,\[-])(nan|inf)(?=[\s,\]])", lambda match: _JSON[match[1]], path.read_text())
    return {
        row["name"]: np.asarray(row["values"], np.float32).reshape([int(size) for size in row["dimensions"].split("x")])
        for row in json.loads(text)
    }


_JSON = {"nan": "NaN", "inf": "Infinity"}


def emulated() -> bool:
    """Whether the model ran on something other than the real device: never, the tool runs on GPUs only."""
    return False


def versions() -> dict[str, str]:
    """The versions of the software that ran the model."""
    output = subprocess.run([find_tool(), "--help"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"\[TensorRT[^\]]*?v(\d+)\]", output)
    return {"tensorrt": match[1] if match else "not known", "numpy": np.__version__}
