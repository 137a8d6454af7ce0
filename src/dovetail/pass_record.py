"""What a pass did: the sites it changed, and those it recognized but left unchanged, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Site:
    """One place in the graph, by original tensor or node name, and what was changed or why nothing was."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class PassRecord:
    """The outcome of one pass over one model."""

    name: str
    changed: tuple[Site, ...] = ()
    declined: tuple[Site, ...] = ()


Pass = Callable[[ir.Model], PassRecord]
