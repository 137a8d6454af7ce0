"""One session of the QNN execution provider for one small model, in a child process: compiled, then emulated.

Opened with nothing but what anyone would set, and not with the product's own session: the rules speak of models of
other tools, deployed by others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_PROVIDER = "QNNExecutionProvider"


def build_and_run(model: str, options: Mapping[str, str], sample: str, outputs: str) -> dict[str, Any]:
    """Compile with CPU fallback forbidden, and run the sample in the same fresh process."""
    import onnxruntime
    import onnxruntime_qnn

    onnxruntime.register_execution_provider_library(_PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _PROVIDER][:1]
    asked = onnxruntime.SessionOptions()
    asked.log_severity_level = 3
    asked.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    asked.add_provider_for_devices(devices, {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), **options})
    session = onnxruntime.InferenceSession(model, asked, enable_fallback=0)
    names = [output.name for output in session.get_outputs()]
    with np.load(sample) as arrays:
        np.savez(outputs, allow_pickle=False, **dict(zip(names, session.run(names, dict(arrays)), strict=True)))
    return {"outputs": names}


def simulate(model: str, sample: Mapping[str, Any]) -> dict[str, Any]:
    """The same file on the CPU with every optimization off: what ONNX says, and nothing else."""
    import onnxruntime

    asked = onnxruntime.SessionOptions()
    asked.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, asked, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(sample)), strict=True))
