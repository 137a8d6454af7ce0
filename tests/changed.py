"""A target with other parts, for tests: fields of its table, its backend or its runner, by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from dovetail.op_support import OpSupport
from dovetail.target import Target


def changed(target: Target, **fields: Any) -> Target:
    """``changed(TOY, compile=mine, samples=1, max_rank=3)``: each field goes where it belongs."""
    runner = _with(target.backend.runner, fields)
    backend = dataclasses.replace(_with(target.backend, fields), runner=runner)
    table = _with(target.table, fields)
    target = dataclasses.replace(_with(target, fields), backend=backend, table=table)
    assert not fields, f"no part of a target has {sorted(fields)}"
    return target


def with_op(target: Target, op: str, support: OpSupport) -> Target:
    """The target with another entry in its table."""
    return changed(target, ops={**target.table.ops, op: support})


def _with(record: Any, fields: dict[str, Any]) -> Any:
    known = {field.name for field in dataclasses.fields(record)} - {"target"}
    return dataclasses.replace(record, **{name: fields.pop(name) for name in list(fields) if name in known})
