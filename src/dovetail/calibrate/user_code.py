"""The caller's own functions: loaded by name, and their errors reported in one sentence."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.errors import BackendError, InputError


@contextmanager
def user_code(label: str) -> Iterator[None]:
    """Report whatever the caller's code raises in this block, an exit included, as an ``InputError`` with a label."""
    try:
        yield
    except (InputError, BackendError, MemoryError):
        raise  # from an iterator of Dovetail that was passed to the caller's code; memory can run out in either
    except (Exception, SystemExit) as error:
        raise InputError(f"{label}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def load_function(text: str) -> Callable[..., Any]:
    """Load the function named ``module:function``; the module may be in the current folder."""
    module_name, _, name = text.partition(":")
    if not name or not all(part.isidentifier() for part in module_name.split(".")):
        raise InputError(f"{text}: must be module:function")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        with user_code(f"{text}: cannot import {module_name!r}"):
            module = importlib.import_module(module_name)
    finally:
        sys.path.remove(folder)
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{text}: {module_name!r} has no function {name!r}")
    loaded: Callable[..., Any] = function
    return loaded


def items_of(function: Callable[[], Any], name: str) -> Iterator[Any]:
    """Yield what the caller's function yields."""
    with user_code(name):
        items = function()
        iterator = iter(items) if hasattr(items, "__iter__") else None
    if iterator is None:
        raise InputError(f"{name}: returns {type(items).__name__}, it must yield dicts of input name to array")
    end = object()
    while True:
        with user_code(name):
            item = next(iterator, end)
        if item is end:
            return
        yield item
