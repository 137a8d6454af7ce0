"""An ONNX Runtime session on Qualcomm's HTP, with the options that the model was verified with.

Requires only the packages onnxruntime and onnxruntime-qnn. The backend library is libQnnHtp.so or QnnHtp.dll: the one
in the package, or the one that the argument or the environment variable QNN_BACKEND_PATH names.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

PROVIDER = "QNNExecutionProvider"
PROVIDER_OPTIONS: dict[str, str] = {}
SESSION_OPTIONS = {
    # Otherwise operators that HTP does not support run on the CPU, and measurements are not those of HTP.
    "session.disable_cpu_ep_fallback": "1",
    # Two Q/DQ pairs of the same dtype in a row are a planned conversion: onnxruntime must not merge them.
    "session.disable_double_qdq_remover": "1",
}


def open_session(model: str, backend: str = "") -> Any:
    """Open a session for a context binary (context.onnx) or for the QDQ graph (model.onnx), which is compiled first."""
    import onnxruntime
    import onnxruntime_qnn

    onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for key, value in SESSION_OPTIONS.items():
        options.add_session_config_entry(key, value)
    library = backend or os.environ.get("QNN_BACKEND_PATH") or onnxruntime_qnn.get_qnn_htp_path()
    devices = sorted((d for d in onnxruntime.get_ep_devices() if d.ep_name == PROVIDER), key=lambda d: not _is_npu(d))
    options.add_provider_for_devices(devices[:1], {"backend_path": library, **PROVIDER_OPTIONS})
    # Otherwise onnxruntime retries on the CPU when the provider does not start, and its error message is lost.
    return onnxruntime.InferenceSession(model, options, enable_fallback=0)


def open_model(model: str, backend: str = "") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function from inputs by name to outputs by name."""
    session = open_session(model, backend)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def emulated() -> bool:
    """Whether the model runs on the emulator: on an x86 PC without an NPU the same library emulates HTP."""
    import onnxruntime

    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return x86 and not any(_is_npu(d) for d in onnxruntime.get_ep_devices() if d.ep_name == PROVIDER)


def versions() -> dict[str, str]:
    """The versions of the packages that run the model."""
    return {name: version(name) for name in ("onnxruntime", "onnxruntime-qnn", "numpy")}


def _is_npu(device: Any) -> bool:
    import onnxruntime

    return bool(device.device.type == onnxruntime.OrtHardwareDeviceType.NPU)
