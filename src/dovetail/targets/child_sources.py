"""The source code that a function in a child process depends on, as one hash for the key of the cache."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
from pathlib import Path


def source_sha256(module: str) -> str:
    """The hash of the module and of all modules of its package and of Dovetail that it imports, directly or not.

    Files are read again on every call, as the child reads them: they may have changed since this process started.
    """
    packages = {module.partition(".")[0], __name__.partition(".")[0]}
    waiting, sources = [module], dict[str, str]()
    while waiting:
        name = waiting.pop()
        if name in sources or name.partition(".")[0] not in packages:
            continue
        file = _file_of(name)
        if file is None:
            continue
        source = file.read_bytes()
        sources[name] = hashlib.sha256(source).hexdigest()
        waiting += _imports(source)
        waiting += [name.rpartition(".")[0]] if "." in name else []  # its package, whose __init__ runs first
    state = hashlib.sha256()
    for name in sorted(sources):
        state.update(f"{name} {sources[name]}\n".encode())
    return state.hexdigest()


def _file_of(module: str) -> Path | None:
    """The file of a module; None for a name that is none, as that of a function in ``from module import function``."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the name before the last dot is a module without submodules
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)


@functools.lru_cache(maxsize=1024)
def _imports(source: bytes) -> tuple[str, ...]:
    """Every name that is imported when the code runs, wherever in the file: not what only annotations need."""
    names: list[str] = []
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)
