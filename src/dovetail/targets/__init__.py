"""The backends, one file or folder each; a target is named by one string, as in ``ort-cpu`` or ``qnn-htp:sm8550``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.errors import InputError

if TYPE_CHECKING:  # a vendor's child process imports this package, and nothing that is heavy
    from dovetail.target import Family, Target

# Target family -> the module that has its ``FAMILY``; imported only when asked for.
FAMILIES: dict[str, str] = {
    "ort-cpu": "dovetail.targets.ort_cpu.target",
    "qnn-htp": "dovetail.targets.qnn_htp.target",
    "xnnpack": "dovetail.targets.xnnpack.target",
    "tensorrt": "dovetail.targets.tensorrt.target",
}


def open_target(spec: str, options: Mapping[str, str] | None = None) -> Target:
    """The target that a string names; unknown names and options are refused, because a typo must not be silent."""
    name, _, variant = spec.partition(":")
    if name not in FAMILIES:
        raise InputError(f"unknown target {spec!r}; there is {', '.join(sorted(FAMILIES))}")
    return family_named(name).open(variant, options or {})


def family_named(name: str) -> Family:
    """The targets that share the name in front of the colon."""
    family: Family = importlib.import_module(FAMILIES[name]).FAMILY
    return family
