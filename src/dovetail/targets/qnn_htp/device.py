"""The device files of ``qnn-htp``: the context binary, a session with its options, the input list of qnn-net-run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dovetail.backend import MODEL, CompileResult, DeviceCase, DeviceFiles
from dovetail.targets.qnn_htp import device_session
from dovetail.targets.qnn_htp.expanded_blocks import block_options

_OPTIONS = "PROVIDER_OPTIONS: dict[str, str] = {}\n"


def device_files(provider_options: Mapping[str, str], compiled: CompileResult, case: DeviceCase) -> DeviceFiles:
    """Return the model files, the context binary first if there is one, and the scripts that run them."""
    context = [a.path for a in compiled.artifacts if a.name.startswith("context")]
    shipped = [a.path for a in compiled.artifacts if a.name.startswith(MODEL)]
    models = sorted(context, key=_is_data) + sorted(shipped, key=_is_data)
    emitted = [path for path in shipped if not _is_data(path) and path.exists()]
    blocks = {key: value for path in emitted for key, value in block_options(path).items()}
    texts = {"device_session.py": session_text({**provider_options, **blocks}), "input_list.txt": input_list(case)}
    return DeviceFiles(tuple(models), texts)


def session_text(provider_options: Mapping[str, str]) -> str:
    """Return the source of the session module with the provider options of this run."""
    text = Path(device_session.__file__).read_text()
    if _OPTIONS not in text:
        raise ValueError("device_session.py has no PROVIDER_OPTIONS line to replace")
    return text.replace(_OPTIONS, f"PROVIDER_OPTIONS = {json.dumps(dict(provider_options), indent=4)}\n")


def input_list(case: DeviceCase) -> str:
    """Return one line per sample, ``name:=path`` for every input, as qnn-net-run reads it."""
    return "".join(" ".join(f"{name}:={path}" for name, path in files.items()) + "\n" for files in case.samples)


def _is_data(path: Path) -> bool:
    return path.suffix != ".onnx"
