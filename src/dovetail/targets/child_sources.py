"""The source code that a function in a child process depends on, as one hash for the key of the compile cache."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path


@functools.cache
def source_sha256(module: str) -> str:
    """Over the module and all modules of its own package and of this one that it imports, directly or not."""
    packages = {module.partition(".")[0], __name__.partition(".")[0]}
    waiting, sources = [module], dict[str, bytes]()
    while waiting:
        name = waiting.pop()
        file = _file_of(name)
        if file is None or name in sources:
            continue
        sources[name] = file.read_bytes()
        waiting += [other for other in _imports(sources[name]) if other.partition(".")[0] in packages]
    state = hashlib.sha256()
    for name in sorted(sources):
        state.update(f"{name} {hashlib.sha256(sources[name]).hexdigest()}\n".encode())
    return state.hexdigest()


def _file_of(module: str) -> Path | None:
    """The file of a module; None for a name that is none, as that of a function in ``from module import function``."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the name before the last dot is a module without submodules
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _imports(source: bytes) -> Iterator[str]:
    """Every name that is imported when the code runs, wherever in the file: not what only annotations need."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
