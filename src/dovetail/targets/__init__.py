"""The targets, one folder each; a target is named by one string, as in ``ort-cpu`` or ``qnn-htp:sm8550``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.errors import InputError

if TYPE_CHECKING:  # child processes that run vendor tools import this package: keep it light
    from dovetail.target import Family, Target

# Target family -> the module that defines its ``FAMILY``; imported only when it is used.
FAMILIES: dict[str, str] = {
    "ort-cpu": "dovetail.targets.ort_cpu.target",
    "qnn-htp": "dovetail.targets.qnn_htp.target",
    "qairt": "dovetail.targets.qairt.target",
    "xnnpack": "dovetail.targets.xnnpack.target",
    "tensorrt": "dovetail.targets.tensorrt.target",
}


def open_target(spec: str, options: Mapping[str, str] | None = None) -> Target:
    """Return the target that a string names; an unknown name or option is an error."""
    name, _, suffix = spec.partition(":")
    if name not in FAMILIES:
        raise InputError(f"unknown target {spec!r}; expected one of {', '.join(sorted(FAMILIES))}")
    return family_named(name).open(suffix, options or {})


def family_named(name: str) -> Family:
    """Return the family of targets whose names start with this, before the colon."""
    family: Family = importlib.import_module(FAMILIES[name]).FAMILY
    return family
