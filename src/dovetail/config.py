"""What a run is asked to do: one frozen, checked record, from the command line, a TOML file or Python."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.errors import InputError
from dovetail.finding import VERDICT_TABLE, Thresholds
from dovetail.numerics.methods import RangeMethod

_ALIASES = {"int8": "w8a8"}


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Everything but the model, the data and the run directory."""

    target: str
    precision: str = "w8a8"
    range: str = "minmax"
    keep: tuple[str, ...] = ()
    io: str = "float"
    shape: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    option: Mapping[str, str] = field(default_factory=dict)
    require: tuple[str, ...] = ()
    metric: str | None = None
    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = "nchw"
    thresholds: Thresholds = field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", _ALIASES.get(self.precision, self.precision))
        if self.range not in set(RangeMethod):
            raise InputError(f"unknown range method {self.range!r}; there is {', '.join(RangeMethod)}")
        if self.io not in ("float", "quantized"):
            raise InputError(f"unknown io {self.io!r}; there is float and quantized")
        if self.layout not in ("nchw", "nhwc"):
            raise InputError(f"unknown layout {self.layout!r}; there is nchw and nhwc")
        for name in self.require:
            if name not in VERDICT_TABLE:
                raise InputError(f"--require {name}: no such verdict; there is {', '.join(VERDICT_TABLE)}")
        if any(number == 0 for number in self.std):
            raise InputError("--std: a standard deviation of zero cannot be divided by")


def options_from(values: Mapping[str, Any]) -> FitOptions:
    """A checked record from plain values; an unknown key is an error, because a typo must not be silent."""
    known = {field.name for field in dataclasses.fields(FitOptions)}
    for key in values:
        if key not in known:
            raise InputError(f"unknown option {key!r}; there is {', '.join(sorted(known))}")
    if "target" not in values:
        raise InputError("no target given; say --target ort-cpu, or another from `dovetail targets`")
    ready = {key: _frozen(key, value) for key, value in values.items() if value is not None}
    return FitOptions(**ready)


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a TOML file; what they may be is checked with the rest."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: not a configuration ({error})") from error


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """``name=1,3,224,224`` -> shapes by input name."""
    shapes = {}
    for text in texts:
        name, equals, numbers = text.rpartition("=")
        parts = [part.strip() for part in numbers.split(",")]
        if not equals or not name or not all(part.isdigit() and int(part) > 0 for part in parts):
            raise InputError(f"--shape {text}: must be name=1,3,224,224 with whole numbers above zero")
        shapes[name] = tuple(int(part) for part in parts)
    return shapes


def parse_options(texts: tuple[str, ...]) -> dict[str, str]:
    """``key=value`` -> target options."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--option {text}: must be key=value")
        options[key] = value
    return options


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """``0.485,0.456,0.406`` -> numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--{name} {text}: must be numbers with commas between") from error


def _frozen(key: str, value: Any) -> Any:
    """Lists of TOML and Python as tuples, thresholds as their record."""
    if key == "thresholds" and isinstance(value, Mapping):
        known = {field.name for field in dataclasses.fields(Thresholds)}
        unknown = sorted(set(value) - known)
        if unknown:
            raise InputError(f"unknown threshold {unknown[0]!r}; there is {', '.join(sorted(known))}")
        return Thresholds(**value)
    if key == "shape" and isinstance(value, Mapping):
        return {name: tuple(int(size) for size in sizes) for name, sizes in value.items()}
    if isinstance(value, list):
        return tuple(value)
    return value
