"""Stages: each declares its inputs, its key is derived from them, and its record is stored in the run directory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from dovetail.clock import Clock
from dovetail.rundir import RunDir

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class KeyedValue(Generic[T_co]):
    """A value, and a key that is equal if an earlier run had the same value."""

    value: T_co
    key: str


def keyed(value: T) -> KeyedValue[T]:
    """Key a value of plain JSON types by its own text; other types, whose text may differ between runs, are refused."""
    return KeyedValue(value, json.dumps(value, sort_keys=True, default=_refuse))


def unknown(value: T) -> KeyedValue[T]:
    """Key a value that cannot be identified: it never equals that of an earlier run."""
    return KeyedValue(value, os.urandom(8).hex())


def _refuse(value: object) -> str:
    raise TypeError(f"{type(value).__name__} is not a plain JSON type: give it a key")


class Codec(NamedTuple, Generic[T]):
    """How a record is saved, returning the files, and loaded."""

    save: Callable[[T], tuple[Path, ...]]
    load: Callable[[], T]


class Stages:
    """Runs stages in a run directory; ``tools``: the versions of all packages, part of every key."""

    def __init__(self, run: RunDir, clock: Clock, tools: Mapping[str, str]) -> None:
        self._run, self._clock = run, clock
        self._tools = keyed(dict(tools)).key

    def key(self, name: str, **inputs: KeyedValue[Any]) -> str:
        """The key of what is made from these inputs, with these versions of all packages."""
        keys = {argument: keyed_value.key for argument, keyed_value in inputs.items()}
        return hashlib.sha256(json.dumps({"stage": name, "tools": self._tools, **keys}).encode()).hexdigest()

    def make(
        self,
        name: str,
        function: Callable[..., T],
        codec: Codec[T],
        *,
        final: Callable[[T], bool] = lambda _: True,
        **inputs: KeyedValue[Any],
    ) -> KeyedValue[T]:
        """Return the record that a function makes from its inputs, or load it if an earlier run had the same inputs.

        A record that is not ``final`` is made again next time.
        """
        key = self.key(name, **inputs)
        values = {argument: keyed_value.value for argument, keyed_value in inputs.items()}
        with self._clock.stage(name):
            record = self._run.stage(name, key, lambda: function(**values), codec.save, codec.load, final)
        return KeyedValue(record, key)
