"""What is asked of a plan: one record, so that searching means solving again with one thing changed."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.storage import Edge
from dovetail.target import Precision


@dataclass(frozen=True, slots=True)
class Keep:
    """Tensors or nodes whose original name matches the pattern keep this precision."""

    pattern: str
    precision: Precision

    @property
    def text(self) -> str:
        return f"--keep {self.pattern}={self.precision.name}"


@dataclass(frozen=True, slots=True)
class Request:
    """The precision wanted, how ranges are found, what is pinned, and edges that must convert instead of share."""

    precision: Precision
    method: str = "minmax"
    keeps: tuple[Keep, ...] = ()
    quantized_io: bool = False
    breaks: frozenset[Edge] = frozenset()
