"""A TensorRT-RTX engine on its GPU, by the command line tool that comes with the SDK.

Stands alone: needs the tool ``tensorrt_rtx`` (or ``trtexec``), found in the path, or named by the argument or the
variable TRTEXEC. An engine that was built ahead of time is compiled for the GPU when it is loaded.
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
# What `dovetail verify` reads beside the outputs: the layers of the engine that ran, and the times of every sample.
LAYER_INFO, DETAILED = "layer_info.json", "--profilingVerbosity=detailed"
_RUNS = 50
_exported: list[Path] = []


def export_to(folder: Path) -> None:
    """Leave layers and times in a folder too, from the next run on."""
    _exported.append(folder)


def exports(folder: str, number: int) -> list[str]:
    """The words that make the tool leave them."""
    return [f"--exportTimes={folder}/times_{number:03d}.json", f"--exportLayerInfo={folder}/{LAYER_INFO}", DETAILED]


def find_tool(backend: str = "") -> str:
    """The tool's path; without one nothing can be run."""
    named = backend or os.environ.get("TRTEXEC", "")
    found = named or next((path for name in TOOLS if (path := shutil.which(name))), "")
    if not found:
        raise FileNotFoundError(f"none of {', '.join(TOOLS)} is in the path: give --backend PATH")
    return found


def open_model(model: str, backend: str = "") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function from inputs by name to outputs by name."""
    tool = find_tool(backend)
    numbers = itertools.count()

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            given = []
            for number, (key, array) in enumerate(inputs.items()):
                path = folder / f"{number}.raw"
                path.write_bytes(np.ascontiguousarray(array).tobytes())
                given.append(f"'{key}':{path}")
            answer = folder / "outputs.json"
            load = f"--loadEngine={model}" if not model.endswith(".onnx") else f"--onnx={model}"
            command = [tool, load, f"--loadInputs={','.join(given)}", f"--exportOutput={answer}"]
            command += [f"--iterations={_RUNS if _exported else 1}", "--duration=0"]
            command += exports(str(_exported[-1]), next(numbers)) if _exported else []
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return read_export(answer)

    return run


def read_export(path: Path) -> dict[str, Any]:
    """The outputs that the tool exported: a list of name, dimensions as ``1x10``, values."""
    text = re.sub(r"(?<=[\s,\[-])(nan|inf)(?=[\s,\]])", lambda found: _JSON[found[1]], path.read_text())
    return {
        one["name"]: np.asarray(one["values"], np.float32).reshape([int(size) for size in one["dimensions"].split("x")])
        for one in json.loads(text)
    }


_JSON = {"nan": "NaN", "inf": "Infinity"}


def emulated() -> bool:
    """Whether what ran was no GPU: the tool has nothing else."""
    return False


def versions() -> dict[str, str]:
    """What ran it."""
    said = subprocess.run([find_tool(), "--help"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\[TensorRT[^\]]*?v(\d+)\]", said)
    return {"tensorrt": found[1] if found else "not known", "numpy": np.__version__}
