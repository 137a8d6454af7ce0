"""Whether the ``tensorrt-rtx`` wheel is installed, and whether it builds for a GPU."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from dovetail.backend import Probe
from dovetail.targets.tensorrt.chips import BUILT, Gpu

PACKAGE = "tensorrt-rtx-cu12"
_INSTALL = "pip install 'dovetail-fit[tensorrt]'"


def probe(gpu: Gpu) -> Probe:
    """Whether an engine can be built on this machine; the wheel is not imported."""
    try:
        versions = {PACKAGE: version(PACKAGE)}
    except PackageNotFoundError:
        return Probe(False, {}, f"{PACKAGE} is not installed: {_INSTALL}")
    if not gpu.is_built:
        supported = ", ".join(f"sm{sm}" for sm in BUILT)
        missing = (
            f"{PACKAGE} {versions[PACKAGE]} builds for {supported} only: for {gpu.name} only the ONNX file is written"
        )
        return Probe(False, versions, missing)
    return Probe(True, versions)
