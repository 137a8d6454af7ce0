"""A session of the QNN execution provider that may leave nodes to the CPU, for the child process of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.targets.qnn_htp.device_session import PROVIDER, SESSION_OPTIONS

GRAPHS = "graphs"
_NO_FALLBACK = "session.disable_cpu_ep_fallback"


def compile_in_child(model: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Compile with verbose logging and dump the QNN graph of every partition; an error is part of the answer."""
    import onnxruntime
    import onnxruntime_qnn

    Path(GRAPHS).mkdir()
    onnxruntime.set_default_logger_severity(0)  # before the library is registered, otherwise its log is lost
    onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER][:1]
    session = onnxruntime.SessionOptions()
    session.log_severity_level = 0
    for key, value in SESSION_OPTIONS.items():
        session.add_session_config_entry(key, "0" if key == _NO_FALLBACK else value)
    # As without fallback: Q and DQ of the graph's inputs and outputs belong to the graph.
    own = {"offload_graph_io_quantization": "0", "dump_json_qnn_graph": "1", "json_qnn_graph_dir": GRAPHS}
    session.add_provider_for_devices(devices, {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), **options, **own})
    try:
        onnxruntime.InferenceSession(model, session, enable_fallback=0)
    except Exception as error:  # noqa: BLE001 - what a graph that cannot be finalized ends with
        return {"error": str(error)}
    return {"error": ""}
