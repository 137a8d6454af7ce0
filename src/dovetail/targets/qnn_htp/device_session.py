"""A session of ONNX Runtime on Qualcomm's HTP, with the options that the model was checked with.

Stands alone: needs the packages onnxruntime and onnxruntime-qnn. The backend is the library libQnnHtp.so or QnnHtp.dll:
the one in the package, or the one that the argument or the variable QNN_BACKEND_PATH names.
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
    # Without this, what HTP does not take would run on the CPU, and the figures would say nothing about HTP.
    "session.disable_cpu_ep_fallback": "1",
    # Two pairs of the same type in a row are a conversion that was planned: they must not be merged.
    "session.disable_double_qdq_remover": "1",
}


def open_session(model: str, backend: str = "") -> Any:
    """A session for a context binary (context.onnx), or for the QDQ graph (model.onnx), which it compiles first."""
    import onnxruntime
    import onnxruntime_qnn

    onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for key, value in SESSION_OPTIONS.items():
        options.add_session_config_entry(key, value)
    library = backend or os.environ.get("QNN_BACKEND_PATH") or onnxruntime_qnn.get_qnn_htp_path()
    found = sorted((d for d in onnxruntime.get_ep_devices() if d.ep_name == PROVIDER), key=lambda d: not _is_npu(d))
    options.add_provider_for_devices(found[:1], {"backend_path": library, **PROVIDER_OPTIONS})
    # Otherwise Python tries again on the CPU when the provider does not start, and its words are lost.
    return onnxruntime.InferenceSession(model, options, enable_fallback=0)


def open_model(model: str, backend: str = "") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function from inputs by name to outputs by name."""
    session = open_session(model, backend)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def emulated() -> bool:
    """Whether what ran was no HTP: on an ordinary PC the same library emulates one."""
    import onnxruntime

    ordinary = platform.machine().lower() in ("x86_64", "amd64")
    return ordinary and not any(_is_npu(d) for d in onnxruntime.get_ep_devices() if d.ep_name == PROVIDER)


def versions() -> dict[str, str]:
    """What ran it."""
    return {name: version(name) for name in ("onnxruntime", "onnxruntime-qnn", "numpy")}


def _is_npu(device: Any) -> bool:
    import onnxruntime

    return bool(device.device.type == onnxruntime.OrtHardwareDeviceType.NPU)
