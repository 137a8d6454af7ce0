"""The caller's own functions: found by name, and whatever goes wrong in them said in one sentence."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.errors import BackendError, InputError


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Whatever the caller's code raises in this block, an exit or an end of file included, named as its doing."""
    try:
        yield
    except (InputError, BackendError):
        raise  # ours, from an iterator that we handed in
    except (Exception, SystemExit) as error:
        raise InputError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def load_function(text: str) -> Callable[..., Any]:
    """The function behind ``module:function``; the current folder can hold the module."""
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
    found: Callable[..., Any] = function
    return found


def each_of(function: Callable[[], Any], name: str) -> Iterator[Any]:
    """What the caller's function yields, one at a time."""
    with user_code(name):
        made = function()
        iterator = iter(made) if hasattr(made, "__iter__") else None
    if iterator is None:
        raise InputError(f"{name}: gives {type(made).__name__}, it must yield dicts of input name to array")
    end = object()
    while True:
        with user_code(name):
            item = next(iterator, end)
        if item is end:
            return
        yield item
