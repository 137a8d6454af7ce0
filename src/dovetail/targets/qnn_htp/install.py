"""What of the ``onnxruntime-qnn`` wheel is installed here, and whether it goes with the installed onnxruntime."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from dovetail.backend import Probe

PACKAGE = "onnxruntime-qnn"
_INSTALL = "pip install 'dovetail-fit[qnn]'"
# From onnxruntime 1.28 on a provider must say which version it supports; wheels before 2.4.0 do not, and do not start
# ("OrtEp has invalid ort_version_supported=0"; measured: wheel 2.3.0 with onnxruntime 1.27.0 to 1.31.1).
_ONNXRUNTIME, _OLDEST_WHEEL = (1, 28), (2, 4)


def probe() -> Probe:
    """Whether the wheel is here and can start, with the QAIRT that is in it."""
    try:
        wheel = version(PACKAGE)
    except PackageNotFoundError:
        return Probe(False, {}, f"{PACKAGE} is not installed: {_INSTALL}")
    runtime = version("onnxruntime")
    try:
        versions = {PACKAGE: wheel, "qairt": _qairt()}
    except (ImportError, OSError) as error:
        return Probe(
            False, {PACKAGE: wheel}, f"{PACKAGE} {wheel} is installed and cannot be imported ({error}): {_INSTALL}"
        )
    if missing := too_old(wheel, runtime):
        return Probe(False, versions, missing)
    return Probe(True, versions)


def too_old(wheel: str, runtime: str) -> str:
    """Why a wheel does not start with an onnxruntime; empty when it does."""
    if _numbers(wheel) < _OLDEST_WHEEL and _numbers(runtime) >= _ONNXRUNTIME:
        return f"{PACKAGE} {wheel} is too old for onnxruntime {runtime}, its provider does not start: {_INSTALL}"
    return ""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _qairt() -> str:
    """The QAIRT inside the wheel, as the wheel says; nothing of the compiler is loaded for it."""
    from onnxruntime_qnn import build_and_package_info

    return str(getattr(build_and_package_info, "qnn_version", "not known"))
