"""Dovetail quantizes and compiles ONNX vision models for a target, and verifies the compiled model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.api import check, fit, repair, sensitivity, verify_device
    from dovetail.errors import BackendError, InputError
    from dovetail.numerics.lpbq import lpbq_scales
    from dovetail.report.result import Result, load_result
    from dovetail.report.sensitivity import SensitivityResult, load_sensitivity
    from dovetail.torch_export import from_torch

__version__ = "0.1.0"
__all__ = [
    "BackendError",
    "InputError",
    "Result",
    "SensitivityResult",
    "__version__",
    "check",
    "fit",
    "from_torch",
    "load_result",
    "load_sensitivity",
    "lpbq_scales",
    "repair",
    "sensitivity",
    "verify_device",
]

_MODULES = {
    "fit": "dovetail.api",
    "check": "dovetail.api",
    "repair": "dovetail.api",
    "sensitivity": "dovetail.api",
    "verify_device": "dovetail.api",
    "from_torch": "dovetail.torch_export",
    "InputError": "dovetail.errors",
    "BackendError": "dovetail.errors",
    "Result": "dovetail.report.result",
    "load_result": "dovetail.report.result",
    "SensitivityResult": "dovetail.report.sensitivity",
    "load_sensitivity": "dovetail.report.sensitivity",
    "lpbq_scales": "dovetail.numerics.lpbq",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import dovetail`` stays fast."""
    if name not in _MODULES:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)
