"""Union-find: the tensors that must share qparams because an operator passes its input's quantization through."""

from __future__ import annotations

from collections.abc import Iterable


class UnionFind:
    """Disjoint sets of names; a set's representative is its first member in insertion order, not in merge order."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parent = {name: name for name in names}
        self._order = {name: position for position, name in enumerate(self._parent)}

    def __contains__(self, name: str) -> bool:
        return name in self._parent

    def find(self, name: str) -> str:
        """The set's representative."""
        root = name
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[name] != root:
            self._parent[name], name = root, self._parent[name]
        return root

    def union(self, a: str, b: str) -> None:
        """Merge two sets; the representative is the member that was added first."""
        first, second = sorted((self.find(a), self.find(b)), key=self._order.__getitem__)
        self._parent[second] = first

    def sets(self) -> dict[str, tuple[str, ...]]:
        """Every set, by representative, members in insertion order."""
        members: dict[str, list[str]] = {}
        for name in self._parent:
            members.setdefault(self.find(name), []).append(name)
        return {root: tuple(names) for root, names in members.items()}
