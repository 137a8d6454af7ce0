"""The versions that a result was made with."""

from __future__ import annotations

import platform
from importlib.metadata import version

import dovetail


def core_versions() -> dict[str, str]:
    """Return the versions of Dovetail, Python and the core packages."""
    names = ("onnx", "onnx-ir", "onnxruntime", "numpy", "ml_dtypes", "msgspec")
    return {"dovetail": dovetail.__version__, "python": platform.python_version()} | {n: version(n) for n in names}
