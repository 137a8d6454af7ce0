"""Stages: each declares its inputs, its key is derived from them, and its record is kept in the run directory."""

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
    """A value, and what tells whether an earlier run had the same one."""

    value: T_co
    key: str


def keyed(value: T) -> KeyedValue[T]:
    """A plain value, which is its own key; anything whose text could differ between two runs is refused."""
    return KeyedValue(value, json.dumps(value, sort_keys=True, default=_refuse))


def unknown(value: T) -> KeyedValue[T]:
    """A value of which nothing tells whether it is the same: never like that of an earlier run."""
    return KeyedValue(value, os.urandom(8).hex())


def _refuse(value: object) -> str:
    raise TypeError(f"{type(value).__name__} is no plain value: give it a key")


class Codec(NamedTuple, Generic[T]):
    """How a record is written, as files that are named, and read again."""

    save: Callable[[T], tuple[Path, ...]]
    load: Callable[[], T]


class Stages:
    """Runs stages into a run directory; ``tools``: the versions of everything, part of every key."""

    def __init__(self, run: RunDir, clock: Clock, tools: Mapping[str, str]) -> None:
        self._run, self._clock = run, clock
        self._tools = keyed(dict(tools)).key

    def make(
        self,
        name: str,
        function: Callable[..., T],
        codec: Codec[T],
        *,
        final: Callable[[T], bool] = lambda _: True,
        **inputs: KeyedValue[Any],
    ) -> KeyedValue[T]:
        """The record that a function makes of the inputs: loaded where an earlier run made it from the same ones.

        A record that is not ``final`` is made again next time.
        """
        text = json.dumps({"stage": name, "tools": self._tools, **{key: each.key for key, each in inputs.items()}})
        key = hashlib.sha256(text.encode()).hexdigest()
        values = {name: each.value for name, each in inputs.items()}
        with self._clock.stage(name):
            record = self._run.stage(name, key, lambda: function(**values), codec.save, codec.load, final)
        return KeyedValue(record, key)
