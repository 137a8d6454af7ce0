"""Load and call the caller's functions (data, metric); their exceptions become one-sentence error messages."""

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
    """Convert exceptions (and SystemExit) of the caller's code to an ``InputError`` that starts with ``label``."""
    try:
        yield
    except (InputError, BackendError, MemoryError):
        raise  # raised by an iterator of Dovetail that the caller's code reads; memory can run out in either
    except (Exception, SystemExit) as error:
        raise InputError(f"{label}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def load_function(text: str) -> Callable[..., Any]:
    """Load the function named ``module:function``; the module may be in the current folder."""
    module_name, _, name = text.partition(":")
    if not name or not all(part.isidentifier() for part in module_name.split(".")):
        raise InputError(f"{text}: expected module:function")
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
    """Call the caller's function and yield what it yields; messages start with ``name``."""
    with user_code(name):
        items = function()
        iterator = iter(items) if hasattr(items, "__iter__") else None
    if iterator is None:
        raise InputError(f"{name} returns {type(items).__name__}, but must yield dicts of input name to array")
    end = object()
    while True:
        with user_code(name):
            item = next(iterator, end)
        if item is end:
            return
        yield item
