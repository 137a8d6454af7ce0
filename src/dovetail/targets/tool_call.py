"""Calls of vendor tools in a child process, as pure functions of input files and arguments, so that they can be cached.

The child works in a folder of its own that holds its input files by fixed names, and every path it is given is
relative to that folder. So nothing it makes depends on where a run is: the same build is compiled once, and the same
sample is run once on the same build. Measurements of time are not made here: they are never cached.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

from dovetail.files import file_sha256
from dovetail.model.external_data import external_files
from dovetail.targets.child import DEFAULT_LIMITS, ChildResult, Limits, run_child
from dovetail.targets.child_sources import source_sha256
from dovetail.targets.tool_cache import CacheRecord, ToolCache, user_cache

# Raised whenever what is kept of a call, or what it is found by, changes.
_FORMAT = 2
# The packages that read and write the files of every target.
_CORE_PACKAGES = ("numpy", "onnx", "onnx-ir", "onnxruntime")
# An error that is about this machine at this moment, and not about the model.
_MACHINE_ERROR = re.compile(
    r"No space left on device|Too many open files|Read-only file system|Permission denied|Input/output error"
    r"|Resource temporarily unavailable|shared object file|[Oo]ut ?[Oo]f ?[Mm]emory|allocate|bad_alloc|start new thread"
    r"|ModuleNotFoundError|ImportError|OSError"
)


class Task(StrEnum):
    """What a tool is called for: to compile a model, or to run a compiled one."""

    COMPILE = "compile"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a vendor's compiler, emulator or runtime, or of ONNX Runtime.

    ``function``: ``module:name``, called with ``arguments`` in a folder that holds ``inputs`` by name, to which it must
    not write; whatever other files it leaves there are its output. ``packages``: the distributions it uses. ``who``:
    what messages call it. ``is_final``: whether the same call would end in the same way again; only asked about what
    finished. By default an error is not final: it may be about this machine at this moment (a full disk, no memory).
    ``imports``: as for ``run_child``.
    """

    function: str
    arguments: Mapping[str, Any]
    inputs: Mapping[str, Path]
    packages: tuple[str, ...]
    who: str
    limits: Limits = DEFAULT_LIMITS
    is_final: Callable[[ChildResult], bool] = lambda result: result.answer is not None
    task: Task = Task.COMPILE
    imports: tuple[str, ...] = ()


@dataclass(slots=True)
class CallCount:
    """How many calls were made, and how many answers came from the cache instead."""

    made: int = 0
    from_cache: int = 0


@dataclass(slots=True, eq=False)
class ToolSession:
    """The calls of one run of the pipeline, counted by task, and why an answer could not be stored."""

    cache: ToolCache | None
    counts: dict[Task, CallCount] = field(default_factory=lambda: {task: CallCount() for task in Task})
    not_stored: str = ""
    _lock: Lock = field(default_factory=Lock)

    def count(self, task: Task, *, hit: bool) -> None:
        """Add one call."""
        with self._lock:
            self.counts[task].from_cache += hit
            self.counts[task].made += not hit


_SESSION: ContextVar[ToolSession | None] = ContextVar("tool_session", default=None)


@contextmanager
def tool_session(*, use_cache: bool) -> Iterator[ToolSession]:
    """Count the calls in this block, and let them use the user's cache or not."""
    session = ToolSession(user_cache() if use_cache else None)
    token = _SESSION.set(session)
    try:
        yield session
    finally:
        _SESSION.reset(token)


def model_inputs(model: Path, name: str = "model.onnx") -> dict[str, Path]:
    """An ONNX file and the weight files beside it, by the names that a child sees."""
    folder = Path(name).parent
    weights = {(folder / path.relative_to(model.parent)).as_posix(): path for path in external_files(model)}
    return {name: model, **weights}


def call_tool(call: ToolCall, folder: Path) -> ChildResult:
    """Run a tool, or take from the cache what it answered before; its files are moved into ``folder``.

    Files are only moved where there is an answer: what a tool that failed or was stopped left behind is removed.
    """
    session = _session()
    with tempfile.TemporaryDirectory(prefix=".tool-", dir=folder) as name:
        work = Path(name)
        key = _key(call)
        record = None if session.cache is None else session.cache.load(key, work)
        session.count(call.task, hit=record is not None)
        if record is not None:
            result = ChildResult(record.answer, record.error, record.log)
        else:
            result = _run(call, work)
            _store(session, key, call, result, work)
        if result.answer is not None:
            for path in _files(work):
                destination = folder / path.relative_to(work)
                destination.parent.mkdir(parents=True, exist_ok=True)
                path.replace(destination)
    return result


def has_finished(call: ToolCall) -> bool:
    """Whether a call finished before: its answer is in the cache. Not counted."""
    cache = _session().cache
    if cache is None:
        return False
    with tempfile.TemporaryDirectory(prefix="dovetail-") as name:
        return cache.load(_key(call), Path(name)) is not None


def remember(call: ToolCall, result: ChildResult, files: Path | None = None) -> None:
    """Keep the answer of a call that was not made by ``call_tool``, and what it wrote to a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="dovetail-") as name:
        _store(_session(), _key(call), call, result, files or Path(name))


def _session() -> ToolSession:
    return _SESSION.get() or ToolSession(user_cache())


def _run(call: ToolCall, work: Path) -> ChildResult:
    """The tool in its folder; what is in there afterwards is its output only."""
    for name, path in call.inputs.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, work / name)  # no link: ONNX refuses weights with several hard links
    result = run_child(
        call.function, call.arguments, who=call.who, limits=call.limits, folder=work, imports=call.imports
    )
    for name in call.inputs:
        (work / name).unlink()
    return result


def _store(session: ToolSession, key: str, call: ToolCall, result: ChildResult, work: Path) -> None:
    """Keep what would come out the same again; a disk that is full, or read-only, only means that nothing is kept."""
    if session.cache is None or not result.finished or not call.is_final(result):
        return
    if _MACHINE_ERROR.search(result.error):
        return
    try:
        files = _files(work) if result.answer is not None else []
        sha256 = {path.relative_to(work).as_posix(): file_sha256(path) for path in files}
        session.cache.store(CacheRecord(key, result.answer, result.error, result.log, sha256), work)
    except OSError as error:
        session.not_stored = str(error)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _key(call: ToolCall) -> str:
    """The hash of everything that decides what a call answers and writes."""
    packages = sorted({*_CORE_PACKAGES, *call.packages})
    decides = {
        "format": _FORMAT,
        "function": call.function,
        "arguments": dict(call.arguments),
        "inputs": {name: file_sha256(path) for name, path in call.inputs.items()},
        "packages": {name: _version(name) for name in packages},
        "sources": [source_sha256(module) for module in (call.function.partition(":")[0], run_child.__module__)],
        "machine": _machine(),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


@cache
def _version(package: str) -> str:
    return version(package)


@cache
def _machine() -> list[str]:
    """Python, system and processor: compilers choose kernels by what the processor can do."""
    flags = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith(("flags", "Features"))), "")
    processor = hashlib.sha256(flags.encode()).hexdigest()
    return [platform.python_version(), platform.system(), platform.machine(), processor]
