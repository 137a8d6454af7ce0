"""Checked values of an encodings file: every error is one sentence that names the entry and the key."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dovetail.encoding import Array
from dovetail.errors import InputError
from dovetail.printable import one_line, shortened

# No tensor has more dimensions; deeper lists are refused before they are read.
_MOST_DIMENSIONS = 8
_SHOWN = 40
_SMALLEST, _LARGEST = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)


def bad(name: str, problem: str) -> InputError:
    """The error about one entry."""
    return InputError(f"entry {shortened(name, 200)!r}: {problem}")


def shown(value: object) -> str:
    """A value of the file in an error message, shortened."""
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'JSON object'} of {len(value)}"
    return shortened(one_line(repr(value)), _SHOWN)


def required(entry: Mapping[str, Any], key: str, name: str) -> Any:
    if key not in entry:
        raise bad(name, f"it has no {key!r}")
    return entry[key]


def whole(value: object, key: str, name: str, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``; 8.0 counts as 8."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if type(number) is not int or not low <= number <= high:
        raise bad(name, f"{key} is {shown(value)}; expected a whole number from {low} to {high}")
    return number


def flag(value: object, key: str, name: str) -> bool:
    """A truth value, which some versions write as a text."""
    if isinstance(value, bool):
        return value
    if value in ("True", "true", "False", "false"):
        return value in ("True", "true")
    raise bad(name, f"{key} is {shown(value)}; expected true or false")


def choice(value: object, key: str, name: str, expected: Iterable[str]) -> str:
    names = tuple(expected)
    if not isinstance(value, str) or value not in names:
        raise bad(name, f"{key} is {shown(value)}; expected one of {', '.join(names)}")
    return value


def numbers(value: object, key: str, name: str) -> Array:
    """A number, or a list of numbers, or nested lists of them that are all of the same length -> an array."""
    if type(value) in (float, int):
        return _checked(np.asarray(value), key, name)
    if not isinstance(value, list):
        raise bad(name, f"{key} is {shown(value)}; expected a number or a list of numbers")
    _check_depth(value, key, name)
    try:
        array = np.array(value)
    except (ValueError, OverflowError) as error:
        raise bad(name, f"{key} is a list of lists that differ in length") from error
    leaves: Iterable[Any] = value
    for _ in range(array.ndim - 1):
        leaves = itertools.chain.from_iterable(leaves)
    if any(type(leaf) is bool for leaf in leaves):
        raise bad(name, f"{key} has a value that is not a number")
    return _checked(array, key, name)


def _check_depth(value: list[Any], key: str, name: str) -> None:
    level: Any = value
    for _ in range(_MOST_DIMENSIONS):
        if not isinstance(level, list) or not level:
            return
        level = level[0]
    raise bad(name, f"{key} is nested in more than {_MOST_DIMENSIONS} lists")


def _checked(array: Array, key: str, name: str) -> Array:
    if array.dtype.kind not in "if":
        raise bad(name, f"{key} has a value that is not a number")
    if array.size == 0:
        raise bad(name, f"{key} is empty")
    return array


def scales(value: object, key: str, name: str) -> Array:
    """Scales: finite, above zero, and neither zero nor infinite in float32."""
    if type(value) is float:  # most entries have one
        if not _SMALLEST <= value <= _LARGEST:
            raise _bad_scale(value, key, name)
        return np.asarray(value)
    array = numbers(value, key, name).astype(np.float64, copy=False)
    wrong = ~((array >= _SMALLEST) & (array <= _LARGEST))
    if wrong.any():
        raise _bad_scale(float(array[wrong].flat[0]), key, name)
    return array


def _bad_scale(scale: float, key: str, name: str) -> InputError:
    return bad(name, f"{key} is {scale:g}; every scale must be a finite float32 above 0")


def integers(value: object, key: str, name: str, low: int, high: int) -> Array:
    """Whole numbers from ``low`` to ``high``, also if they are written as -128.0."""
    if type(value) in (int, float):  # most entries have one
        return np.asarray(whole(value, key, name, low, high))
    array = numbers(value, key, name)
    whole_array = np.rint(array) if array.dtype.kind == "f" else array
    if array.dtype.kind == "f" and not np.all(whole_array == array):
        wrong = array[whole_array != array].flat[0]
        raise bad(name, f"{key} is {wrong:g}; expected whole numbers")
    out = (whole_array < low) | (whole_array > high)
    if out.any():
        raise bad(name, f"{key} is {whole_array[out].flat[0]:g}; expected whole numbers from {low} to {high}")
    return np.asarray(whole_array, np.int64)


def without_list(value: object) -> object:
    """The number in a list of one, and anything else as it is."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def same_size(first: Array, second: Array, keys: tuple[str, str], name: str) -> None:
    if first.shape != second.shape:
        raise bad(name, f"{keys[0]} has {first.size} values and {keys[1]} has {second.size}; they must be as many")
