"""The device side of ``qnn-htp``: the context binary, a session with its options, and the input list of qnn-net-run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dovetail.backend import MODEL, CompileResult, DeviceCase, DeviceFiles
from dovetail.targets.qnn_htp import device_session

_OPTIONS = "PROVIDER_OPTIONS: dict[str, str] = {}\n"


def device_side(told: Mapping[str, str], compiled: CompileResult, case: DeviceCase) -> DeviceFiles:
    """The files of the model, the context binary first where there is one, and the texts that run them."""
    context = [a.path for a in compiled.artifacts if a.name.startswith("context")]
    shipped = [a.path for a in compiled.artifacts if a.name.startswith(MODEL)]
    models = sorted(context, key=_is_data) + sorted(shipped, key=_is_data)
    texts = {"device_session.py": session_text(told), "input_list.txt": input_list(case)}
    return DeviceFiles(tuple(models), texts)


def session_text(told: Mapping[str, str]) -> str:
    """The session module with the options of this run written into it."""
    text = Path(device_session.__file__).read_text()
    if _OPTIONS not in text:
        raise ValueError("device_session.py has no place for the options")
    return text.replace(_OPTIONS, f"PROVIDER_OPTIONS = {json.dumps(dict(told), indent=4)}\n")


def input_list(case: DeviceCase) -> str:
    """One line per sample, ``name:=path`` for every input, as qnn-net-run reads it."""
    return "".join(" ".join(f"{name}:={path}" for name, path in files.items()) + "\n" for files in case.samples)


def _is_data(path: Path) -> bool:
    return path.suffix != ".onnx"
