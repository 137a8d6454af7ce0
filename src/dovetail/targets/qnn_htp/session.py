"""Sessions of the QNN execution provider; these functions are called only in child processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.targets.qnn_htp.device_session import PROVIDER as _PROVIDER
from dovetail.targets.qnn_htp.device_session import SESSION_OPTIONS


def open_session(model: str, options: Mapping[str, str], *, context: str = "", log: bool = False) -> Any:
    """Open a session that runs the whole model on HTP or fails: CPU fallback is disabled."""
    import onnxruntime
    import onnxruntime_qnn

    if log:
        onnxruntime.set_default_logger_severity(0)  # before the library is registered, otherwise its log is lost
    onnxruntime.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _PROVIDER][:1]
    if not devices:
        raise RuntimeError(f"onnxruntime lists no device for {_PROVIDER}")
    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = 0 if log else 3
    for key, value in SESSION_OPTIONS.items():
        session_options.add_session_config_entry(key, value)
    if context:
        session_options.add_session_config_entry("ep.context_enable", "1")
        session_options.add_session_config_entry("ep.context_file_path", context)
    provider = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), **options}
    session_options.add_provider_for_devices(devices, provider)
    # Otherwise onnxruntime retries on the CPU when the provider does not start, and its error message is lost.
    return onnxruntime.InferenceSession(model, session_options, enable_fallback=0)


def build_in_child(model: str, options: Mapping[str, str], context: str) -> dict[str, Any]:
    """Compile with verbose logging; write the dump, the context binary and the profile."""
    Path(options["json_qnn_graph_dir"]).mkdir()
    session = open_session(model, options, context=context, log=True)
    return {"inputs": [value.name for value in session.get_inputs()]}


def write_dlc_in_child(model: str, options: Mapping[str, str], folder: str) -> dict[str, Any]:
    """Write the QNN graph as a DLC, with QNN's serializer backend instead of the HTP compiler."""
    import onnxruntime_qnn

    htp = Path(onnxruntime_qnn.get_qnn_htp_path())
    serializer = htp.with_name(htp.name.replace("Htp", "Ir"))
    serializing = {"dump_qnn_ir_dlc": "1", "dump_qnn_ir_dlc_dir": folder, "qnn_ir_backend_path": str(serializer)}
    open_session(model, {**options, **serializing}, log=True)
    return {"files": sorted(path.name for path in Path(folder).glob("*.dlc"))}


def run_in_child(model: str, options: Mapping[str, str], sample: str, names: list[str], outputs: str) -> dict[str, Any]:
    """Emulate one sample in a fresh process: buffers of an earlier session can hide an operator that writes nothing.

    ``names``: of the inputs, whose arrays in the file ``sample`` are numbered, as those of the outputs are.
    """
    session = open_session(model, options)
    results = [output.name for output in session.get_outputs()]
    read = {value.name for value in session.get_inputs()}
    with np.load(sample) as arrays:
        feed = {name: arrays[f"{i}"] for i, name in enumerate(names) if name in read}
    np.savez(outputs, allow_pickle=False, **{f"{i}": array for i, array in enumerate(session.run(results, feed))})
    return {"outputs": results}
