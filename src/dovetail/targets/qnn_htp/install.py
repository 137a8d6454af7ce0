"""Whether the ``onnxruntime-qnn`` wheel is installed and compatible with the installed onnxruntime."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from dovetail.backend import Probe
from dovetail.targets.qnn_htp.qairt import WHEELS, Version

PACKAGE = "onnxruntime-qnn"
_INSTALL = "pip install 'dovetail-fit[qnn]'"
# From onnxruntime 1.28 on a provider must declare the version that it supports; wheels before 2.4.0 do not, and do not
# start ("OrtEp has invalid ort_version_supported=0"; measured: wheel 2.3.0 with onnxruntime 1.27.0 to 1.31.1).
_ONNXRUNTIME, _OLDEST_WHEEL = (1, 28), (2, 4)
# Provider options that the oldest wheel does not have, with the first one that does. A wheel silently ignores an option
# that it does not know.
_OPTION_SINCE = {"enable_block_quant_weight_optimization": (2, 5)}


def probe() -> Probe:
    """Return whether the wheel is installed and can start, with its version and that of the QAIRT in it."""
    try:
        wheel = version(PACKAGE)
    except PackageNotFoundError:
        return Probe(False, {}, f"{PACKAGE} is not installed: {_INSTALL}")
    runtime = version("onnxruntime")
    try:
        versions = {PACKAGE: wheel, "qairt": _qairt()}
    except (ImportError, OSError) as error:
        return Probe(
            False, {PACKAGE: wheel}, f"{PACKAGE} {wheel} is installed but cannot be imported ({error}): {_INSTALL}"
        )
    if reason := too_old(wheel, runtime):
        return Probe(False, versions, reason)
    return Probe(True, versions)


def installed_qairt() -> Version | None:
    """Return the QAIRT version in the installed wheel, by the wheel's version; None if it is not known."""
    try:
        wheel = version(PACKAGE)
    except PackageNotFoundError:
        return None
    return next((qairt for qairt, listed in WHEELS.items() if listed == wheel), None)


def too_old(wheel: str, runtime: str) -> str:
    """Return why a wheel does not start with a version of onnxruntime; empty if it does."""
    if _major_minor(wheel) < _OLDEST_WHEEL and _major_minor(runtime) >= _ONNXRUNTIME:
        return f"{PACKAGE} {wheel} is too old for onnxruntime {runtime}, its provider does not start: {_INSTALL}"
    return ""


def why_ignored(options: Iterable[str], wheel: str) -> str:
    """Why a wheel ignores one of these provider options, which it does silently; empty if it knows them all."""
    for name in options:
        since = _OPTION_SINCE.get(name)
        if since is not None and _major_minor(wheel) < since:
            first = ".".join(map(str, since))
            ignored = f"silently ignores the option {name}, which came with {first}"
            return f"{PACKAGE} {wheel} {ignored}: {_INSTALL} --upgrade"
    return ""


def _major_minor(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _qairt() -> str:
    """The QAIRT version in the wheel, from the wheel's own metadata; the compiler is not loaded."""
    from onnxruntime_qnn import build_and_package_info

    return str(getattr(build_and_package_info, "qnn_version", "not known"))
