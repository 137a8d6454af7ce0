"""A workaround: how a graph is changed or planned so that a known miscompilation of the HTP compiler does not occur."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dovetail.op_support import OpSupport, OpTable
from dovetail.pass_record import Pass

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Workaround:
    """How one miscompilation is avoided.

    ``code``: the rule that finds it in a quantized model, and says how and for which versions it is known. ``passes``:
    changes of the float graph, with equal results. ``limits``: by operator, what to change in the op table.
    ``fixed_in``: the first QAIRT version that was measured not to have it; None if the newest one still has it.
    """

    code: str
    passes: tuple[Pass, ...] = ()
    limits: Mapping[str, Callable[[OpSupport], OpSupport]] = field(default_factory=dict)
    fixed_in: Version | None = None

    def needed_with(self, qairt: Version | None) -> bool:
        """Whether a QAIRT version has the miscompilation; versions that are unknown or not measured may have it."""
        return qairt is None or self.fixed_in is None or qairt < self.fixed_in


def limited(table: OpTable, workarounds: Iterable[Workaround]) -> OpTable:
    """The op table with the limits of these workarounds."""
    ops = dict(table.ops)
    for workaround in workarounds:
        for op, limit in workaround.limits.items():
            ops[op] = limit(ops[op])
    return replace(table, ops=ops)
