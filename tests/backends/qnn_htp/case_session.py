"""Compile and emulate one small model with the QNN execution provider, in a child process.

The session has only the options that any user would set, not those of Dovetail's own session: the rules are about
models of other tools, deployed without Dovetail.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_PROVIDER = "QNNExecutionProvider"


def build_and_run(model: str, options: Mapping[str, str], sample: str, outputs: str, dump: str) -> dict[str, Any]:
    """Compile with CPU fallback disabled, and run the sample in the same fresh process."""
    Path(dump).mkdir()
    import onnxruntime
    import onnxruntime_qnn

    onnxruntime.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _PROVIDER][:1]
    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = 3
    session_options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session_options.add_provider_for_devices(devices, {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), **options})
    session = onnxruntime.InferenceSession(model, session_options, enable_fallback=0)
    names = [output.name for output in session.get_outputs()]
    with np.load(sample) as arrays:
        np.savez(outputs, allow_pickle=False, **dict(zip(names, session.run(names, dict(arrays)), strict=True)))
    return {"outputs": names}


def simulate(model: str, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Run the same file on the CPU without optimizations: the outputs that ONNX defines."""
    import onnxruntime

    session_options = onnxruntime.SessionOptions()
    session_options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, session_options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(sample)), strict=True))
