"""The backends, one file or folder each; a target is named by one string, as in ``ort-cpu`` or ``qnn-htp:sm8550``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from dovetail.errors import InputError
from dovetail.target import Target

# Target family -> the module that has ``open_target(variant, options)``; imported only when asked for.
FAMILIES: dict[str, str] = {
    "ort-cpu": "dovetail.targets.ort_cpu.target",
    "qnn-htp": "dovetail.targets.qnn_htp.target",
    "xnnpack": "dovetail.targets.xnnpack.target",
    "tensorrt": "dovetail.targets.tensorrt.target",
}


def open_target(spec: str, options: Mapping[str, str] | None = None) -> Target:
    """The target that a string names; unknown names and options are refused, because a typo must not be silent."""
    family, _, variant = spec.partition(":")
    module = FAMILIES.get(family)
    if module is None:
        raise InputError(f"unknown target {spec!r}; there is {', '.join(sorted(FAMILIES))}")
    target: Target = importlib.import_module(module).open_target(variant, options or {})
    return target
