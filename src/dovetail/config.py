"""What a run is asked to do: one frozen, checked record, from the command line, a TOML file or Python."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from dovetail.errors import InputError
from dovetail.finding import PASSES_WHEN, Thresholds
from dovetail.numerics.methods import RangeMethod
from dovetail.whole_number import LARGEST, whole_number

_ALIASES = {"int8": "w8a8"}
# What a plan that is given has decided already.
_DECIDED_BY_PLAN = ("precision", "range", "keep", "io", "operand_bits")


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Everything but the model, the data and the run directory."""

    target: str
    precision: str = "w8a8"
    range: str = "minmax"
    keep: tuple[str, ...] = ()
    io: str = "float"
    baselines: str = "first"
    emulate: int | None = None
    operand_bits: str = "auto"
    shape: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    option: Mapping[str, str] = field(default_factory=dict)
    require: tuple[str, ...] = ()
    cache: bool = True
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
        if self.operand_bits not in ("auto", "16", "8"):
            raise InputError(f"--operand-bits {self.operand_bits}: expected one of auto, 16, 8")
        if self.emulate is not None and not 1 <= self.emulate <= LARGEST:
            raise InputError(f"--emulate {self.emulate}: must be a whole number from 1 to {LARGEST}")
        if self.layout not in ("nchw", "nhwc"):
            raise InputError(f"unknown layout {self.layout!r}; there is nchw and nhwc")
        for name in self.require:
            if name not in PASSES_WHEN:
                raise InputError(f"--require {name}: no such verdict; there is {', '.join(PASSES_WHEN)}")
        if any(number == 0 for number in self.std):
            raise InputError("--std: a standard deviation of zero cannot be divided by")
        if not all(math.isfinite(number) for number in (*self.mean, *self.std)):
            raise InputError("--mean and --std must be finite")
        for name, number in dataclasses.asdict(self.thresholds).items():
            if not math.isfinite(number):
                raise InputError(f"threshold {name}: must be finite, not {number}")
        if not 1 <= self.thresholds.normalized_samples <= LARGEST:
            raise InputError(f"threshold normalized_samples: must be a whole number from 1 to {LARGEST}")


def options_from(values: Mapping[str, Any], *, planned: bool = False) -> FitOptions:
    """A checked record from plain values; an unknown key is an error, because a typo must not be silent.

    ``planned``: a plan was given, which leaves nothing to say about how tensors are stored.
    """
    known = {field.name for field in dataclasses.fields(FitOptions)}
    for key in values:
        if key not in known:
            raise InputError(f"unknown option {key!r}; there is {', '.join(sorted(known))}")
    if "target" not in values:
        raise InputError("no target given; say --target ort-cpu, or another from `dovetail targets`")
    given = {key: value for key, value in values.items() if value is not None}
    for key in _DECIDED_BY_PLAN:
        if planned and key in given:
            raise InputError(f"--{key} does not go with --plan: the plan says already how everything is stored")
    kinds = get_type_hints(FitOptions)
    return FitOptions(**{key: _typed(key, value, kinds[key]) for key, value in given.items()})


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
        sizes = _whole_numbers(numbers)
        if not equals or not name or sizes is None:
            raise InputError(f"--shape {text}: must be name=1,3,224,224 with whole numbers from 1 to {LARGEST}")
        shapes[name] = sizes
    return shapes


def parse_size(text: str) -> tuple[int, int]:
    """``224,224`` -> height and width."""
    sizes = _whole_numbers(text)
    if sizes is None or len(sizes) != 2:
        raise InputError(f"--size {text}: must be height,width with whole numbers from 1 to {LARGEST}")
    return sizes[0], sizes[1]


def parse_options(texts: tuple[str, ...]) -> dict[str, str]:
    """``key=value`` -> target options."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--option {text}: must be key=value")
        if key in options:
            raise InputError(f"--option {key} is said twice")
        options[key] = value
    return options


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """``0.485,0.456,0.406`` -> numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--{name} {text}: must be numbers with commas between") from error


def _whole_numbers(text: str) -> tuple[int, ...] | None:
    """Whole numbers above zero with commas between; None if one of them is something else."""
    numbers = [whole_number(part.strip()) for part in text.split(",")]
    return tuple(number for number in numbers if number is not None) if None not in numbers else None


def _typed(key: str, value: Any, kind: Any) -> Any:
    """The value as the record has it, lists as tuples; one of another type is refused by its key."""
    if key == "thresholds" and not isinstance(value, Thresholds):
        known = {field.name for field in dataclasses.fields(Thresholds)}
        unknown = sorted(set(value) - known) if isinstance(value, Mapping) else []
        if unknown:
            raise InputError(f"unknown threshold {unknown[0]!r}; there is {', '.join(sorted(known))}")
    try:
        return msgspec.convert(value, kind, from_attributes=isinstance(value, Thresholds))
    except msgspec.ValidationError as error:
        raise InputError(f"option {key} = {value!r}: {error}") from error
