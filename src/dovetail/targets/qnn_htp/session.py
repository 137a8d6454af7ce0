"""The vendor's side, only ever called in a child process: one session of the QNN execution provider."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.targets.qnn_htp.device_session import PROVIDER as _PROVIDER
from dovetail.targets.qnn_htp.device_session import SESSION_OPTIONS


def open_session(model: str, options: Mapping[str, str], *, context: str = "", log: bool = False) -> Any:
    """A session that runs the whole model on HTP or fails: falling back to the CPU is forbidden."""
    import onnxruntime
    import onnxruntime_qnn

    if log:
        onnxruntime.set_default_logger_severity(0)  # before the library is registered, or its words are lost
    onnxruntime.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _PROVIDER][:1]
    if not devices:
        raise RuntimeError(f"onnxruntime lists no device of {_PROVIDER}")
    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = 0 if log else 3
    for key, value in SESSION_OPTIONS.items():
        session_options.add_session_config_entry(key, value)
    if context:
        session_options.add_session_config_entry("ep.context_enable", "1")
        session_options.add_session_config_entry("ep.context_file_path", context)
    provider = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), **options}
    session_options.add_provider_for_devices(devices, provider)
    # Otherwise Python tries again on the CPU when the provider does not start, and its words are lost.
    return onnxruntime.InferenceSession(model, session_options, enable_fallback=0)


def build_in_child(model: str, options: Mapping[str, str], context: str) -> dict[str, Any]:
    """Compile with all the compiler's words on the log, and leave the dump, the context binary and the profile."""
    Path(options["json_qnn_graph_dir"]).mkdir()
    session = open_session(model, options, context=context, log=True)
    return {"inputs": [value.name for value in session.get_inputs()]}


def write_dlc_in_child(model: str, options: Mapping[str, str], folder: str) -> dict[str, Any]:
    """Write the same QNN graph as a DLC: QNN's own format serializer takes the place of the HTP compiler."""
    import onnxruntime_qnn

    htp = Path(onnxruntime_qnn.get_qnn_htp_path())
    serializer = htp.with_name(htp.name.replace("Htp", "Ir"))
    asked = {"dump_qnn_ir_dlc": "1", "dump_qnn_ir_dlc_dir": folder, "qnn_ir_backend_path": str(serializer)}
    open_session(model, {**options, **asked}, log=True)
    return {"files": sorted(path.name for path in Path(folder).glob("*.dlc"))}


def run_in_child(model: str, options: Mapping[str, str], sample: str, outputs: str) -> dict[str, Any]:
    """Emulate one sample in this fresh process: buffers of an earlier session can hide an op that wrote nothing."""
    session = open_session(model, options)
    names = [output.name for output in session.get_outputs()]
    with np.load(sample) as arrays:
        feed = {value.name: arrays[value.name] for value in session.get_inputs()}
    np.savez(outputs, allow_pickle=False, **dict(zip(names, session.run(names, feed), strict=True)))
    return {"outputs": json.dumps(names), "path": str(Path(outputs))}
