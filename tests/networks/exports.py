"""Files that take seconds to export, made once: for all tests, all processes and, from the cache folder, later runs.

A file is kept under what it was made from: the sources of its exporter, its parameters and the versions of what
exports. What fails is not kept. Tests only read what they get.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from dovetail.targets.tool_cache import user_cache

_VERSIONS = ("torch", "transformers", "onnxscript", "onnx", "onnx-ir", "numpy")
_KEPT_S = 30 * 24 * 3600
_PACKAGE = __name__.rpartition(".")[0]


def exported(make: Callable[..., object], *parameters: object) -> Path:
    """The file that ``make(path, *parameters)`` writes; parameters are told apart by their ``repr``."""
    key = _key(make, parameters)
    folder = _store() / f"{make.__name__.strip('_')}-{key}"
    file = folder / "model.onnx"
    if not file.exists():
        with _alone(folder.with_suffix(".lock")):
            if not file.exists():
                _make(make, parameters, folder)
                _remove_unused(folder.parent)
    os.utime(folder)
    return file


def _make(make: Callable[..., object], parameters: tuple[object, ...], folder: Path) -> None:
    """Write into a folder of our own and give it its name at the end: another process sees all of it or nothing."""
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        make(part / "model.onnx", *parameters)
        for path in part.iterdir():
            path.chmod(0o444)
        try:
            part.rename(folder)
        except OSError:  # where there are no locks, another process may have been first
            if not (folder / "model.onnx").exists():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _remove_unused(store: Path) -> None:
    """Sources change and versions pass: what nobody used for a month goes."""
    for path in store.iterdir():
        try:
            used = path.stat().st_mtime
        except FileNotFoundError:  # another process renamed its export, or removed it
            continue
        if time.time() - used > _KEPT_S:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _key(make: Callable[..., object], parameters: tuple[object, ...]) -> str:
    content = hashlib.sha256(repr((make.__module__, make.__qualname__, parameters, _versions())).encode())
    for name in sorted(_sources(make.__module__)):
        content.update(f"\0{name}\0".encode() + _file_of(name).read_bytes())
    return content.hexdigest()[:24]


@functools.cache
def _sources(module: str) -> frozenset[str]:
    """A module and all that it imports from this package, directly or not; this module makes nothing."""
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name not in found and name != __name__:
            found.add(name)
            waiting += _imports(_file_of(name))
    return frozenset(found)


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
            yield from (f"{_PACKAGE}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{_PACKAGE}."):
            yield str(node.module)


def _file_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"{module} has no source file")
    return Path(spec.origin)


@functools.cache
def _versions() -> tuple[str, ...]:
    return tuple(f"{name} {metadata.version(name)}" for name in _VERSIONS)


def _store() -> Path:
    """In the cache folder; where that cannot be written, in one that the processes of this test session share."""
    folder = user_cache().folder.with_name("test-exports")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        writable = False
    else:
        writable = os.access(folder, os.W_OK)
    if not writable:
        session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
        folder = Path(tempfile.gettempdir()) / f"dovetail-exports-{session}"
        folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While one process is inside, others wait; the system ends a lock with the process that holds it."""
    if sys.platform == "win32":  # two processes may then both export, and one file is kept
        yield
        return
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
