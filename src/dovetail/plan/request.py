"""What is asked of a plan: one record, so that searching means solving again with one thing changed."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.edge import Edge
from dovetail.op_support import Precision


@dataclass(frozen=True, slots=True)
class Keep:
    """Tensors or nodes whose original name matches the pattern keep this precision; ``reason``: where no caller said
    so."""

    pattern: str
    precision: Precision
    reason: str = ""

    @property
    def text(self) -> str:
        return self.reason or f"--keep {self.pattern}={self.precision.name}"


@dataclass(frozen=True, slots=True)
class Request:
    """The precision wanted, how ranges are found, what is pinned, and edges that must convert instead of share.

    ``narrow``: the units, by name, whose further operands take fewer bits than their first one where the table has
    both (the second operand of a product of two activations). ``from_data``: whether ranges that nothing else gives
    may be taken from the samples; not where these are noise that nobody asked for.
    """

    precision: Precision
    method: str = "minmax"
    keeps: tuple[Keep, ...] = ()
    quantized_io: bool = False
    breaks: frozenset[Edge] = frozenset()
    narrow: frozenset[str] = frozenset()
    from_data: bool = True
