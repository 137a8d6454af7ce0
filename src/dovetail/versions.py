"""Which versions made a result."""

from __future__ import annotations

import platform
from importlib.metadata import version

import dovetail


def core_versions() -> dict[str, str]:
    """The versions of the core and of Python."""
    names = ("onnx", "onnx-ir", "onnxruntime", "numpy")
    return {"dovetail": dovetail.__version__, "python": platform.python_version()} | {n: version(n) for n in names}
