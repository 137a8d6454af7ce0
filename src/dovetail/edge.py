"""An edge, which is one input of one node, and how it is written: ``node:index``."""

from __future__ import annotations

from typing import Any, Self

from dovetail.errors import InputError
from dovetail.whole_number import whole_number


class Edge:
    """One input of one node: where a consumer may read the tensor in another storage than its own.

    It is written ``node:index`` in every document and message. It is not a dataclass, because those are written field
    by field; ``document`` writes and reads it with ``str`` and ``parse``.
    """

    __slots__ = ("_index", "_node")

    def __init__(self, node: str, index: int) -> None:
        self._node, self._index = node, index

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``node:index``; anything else is refused."""
        node, _, digits = text.rpartition(":")  # a node's name may itself contain colons
        index = whole_number(digits, least=0)
        if not node or index is None:
            raise InputError(f"{text!r} is not an edge: expected node:index, as in conv:1")
        return cls(node, index)

    @property
    def node(self) -> str:
        return self._node

    @property
    def index(self) -> int:
        return self._index

    def __str__(self) -> str:
        return f"{self._node}:{self._index}"

    def __repr__(self) -> str:
        return f"Edge({self._node!r}, {self._index})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Edge) and self._key == other._key

    def __lt__(self, other: Edge) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Edge, self._key

    @property
    def _key(self) -> tuple[str, int]:
        return self._node, self._index
