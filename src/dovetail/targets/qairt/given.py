"""A caller's own encodings as a plan of the caller's own graph: with which scales every operator computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from dovetail.encodings.as_plan import given_plan
from dovetail.encodings.records import Encodings, TensorEncoding
from dovetail.storage import Plan
from dovetail.targets.qairt.roles import tensor_roles


def plan_as_given(model: ir.Model, encodings: Encodings) -> Plan:
    """The plan that the converter is given: what has no entry and follows another tensor has the entry of that one."""
    return given_plan(model, replace(encodings, entries=_completed(model, encodings.entries))).plan


def _completed(model: ir.Model, entries: Mapping[str, TensorEncoding]) -> dict[str, TensorEncoding]:
    roles = tensor_roles(model)
    found = dict(entries)
    for name in roles:
        source = name
        while source not in entries and roles[source].follows in roles:
            source = roles[source].follows
        if source in entries:
            found[name] = replace(entries[source], name=name)
    return found
