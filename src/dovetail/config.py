"""The options of a run: one frozen, checked record, from the command line, a TOML file or Python."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from dovetail.errors import InputError
from dovetail.finding import PASSES_WHEN, Thresholds
from dovetail.numerics.methods import AUTO_ROUNDING, RangeMethod, RoundingMethod
from dovetail.whole_number import LARGEST, whole_number

_ALIASES = {"int8": "w8a8"}
# Options of earlier versions -> what to write now.
_RENAMED = {"operands": "operand_bits, 16 for wide and 8 for narrow"}
# Options that a plan already decides.
_DECIDED_BY_PLAN = ("precision", "range", "rounding", "keep", "io", "operand_bits", "block_size")
# The key in ``max_drop`` for all values of a metric that have no limit of their own.
ALL_VALUES = "*"
# Options that a resumed run may set otherwise: they do not decide how the model is planned.
MAY_CHANGE = frozenset({"baselines", "emulate", "require", "cache", "metric", "thresholds", "max_drop", "min_sqnr"})


@dataclass(frozen=True, slots=True)
class FitOptions:
    """All options but the model, the data and the run directory."""

    target: str
    precision: str = "w8a8"
    range: str = "minmax"
    rounding: str = AUTO_ROUNDING
    keep: tuple[str, ...] = ()
    io: str = "float"
    baselines: str = "first"
    emulate: int | None = None
    operand_bits: str | int = "auto"
    block_size: int | None = None
    range_repair: bool = True
    shape: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    option: Mapping[str, str] = field(default_factory=dict)
    require: tuple[str, ...] = ()
    cache: bool = True
    metric: str | None = None
    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = "nchw"
    min_sqnr: float | None = None
    max_drop: float | Mapping[str, float] | None = None
    max_latency: float | None = None
    max_float: float | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", _ALIASES.get(self.precision, self.precision))
        if self.range not in set(RangeMethod):
            raise InputError(f"unknown range method {self.range!r}; expected one of {', '.join(RangeMethod)}")
        if self.rounding not in (AUTO_ROUNDING, *RoundingMethod):
            expected = ", ".join((AUTO_ROUNDING, *RoundingMethod))
            raise InputError(f"unknown rounding {self.rounding!r}; expected one of {expected}")
        if self.io not in ("float", "quantized"):
            raise InputError(f"unknown io {self.io!r}; expected one of float, quantized")
        object.__setattr__(self, "operand_bits", str(self.operand_bits))
        if self.operand_bits not in ("auto", "16", "8"):
            raise InputError(f"--operand-bits {self.operand_bits}: expected one of auto, 16, 8")
        if self.block_size is not None and not 2 <= self.block_size <= LARGEST:
            raise InputError(f"--block-size {self.block_size}: expected a whole number from 2 to {LARGEST}")
        if self.emulate is not None and not 1 <= self.emulate <= LARGEST:
            raise InputError(f"--emulate {self.emulate}: expected a whole number from 1 to {LARGEST}")
        if self.layout not in ("nchw", "nhwc"):
            raise InputError(f"unknown layout {self.layout!r}; expected one of nchw, nhwc")
        for name in self.require:
            if name not in PASSES_WHEN:
                raise InputError(f"--require {name}: unknown verdict; expected one of {', '.join(PASSES_WHEN)}")
        if any(number == 0 for number in self.std):
            raise InputError("--std must not be zero, because images are divided by it")
        if not all(math.isfinite(number) for number in (*self.mean, *self.std)):
            raise InputError("--mean and --std must be finite")
        object.__setattr__(self, "thresholds", self._with_accuracy_limits())
        for name, number in _numbers(self.thresholds):
            if not math.isfinite(number):
                raise InputError(f"threshold {name}: expected a finite number, not {number}")
            if name.startswith("max_") and number < 0:
                raise InputError(f"threshold {name}: expected a number of at least 0, not {number:g}")
        if not 1 <= self.thresholds.normalized_samples <= LARGEST:
            raise InputError(f"threshold normalized_samples: expected a whole number from 1 to {LARGEST}")

    def _with_accuracy_limits(self) -> Thresholds:
        """The thresholds with ``min_sqnr`` and ``max_drop``, which have options of their own."""
        limits = self.thresholds
        if self.min_sqnr is not None:
            limits = replace(limits, min_sqnr_db=self.min_sqnr)
        if self.max_latency is not None:
            limits = replace(limits, max_latency=self.max_latency)
        if self.max_float is not None:
            limits = replace(limits, max_float=self.max_float)
        if self.max_drop is None:
            return limits
        drops = dict(self.max_drop) if isinstance(self.max_drop, Mapping) else {ALL_VALUES: self.max_drop}
        for_all = drops.pop(ALL_VALUES, limits.max_drop)
        return replace(limits, max_drop=for_all, max_drop_of={**limits.max_drop_of, **drops})


def require_nearest(options: FitOptions, why: str) -> None:
    """Refuse ``--rounding`` where weights are not rounded anew."""
    if options.rounding not in (AUTO_ROUNDING, RoundingMethod.NEAREST):
        raise InputError(f"--rounding {options.rounding} is not supported here: {why}; leave the option out")


def option_values(options: FitOptions) -> dict[str, Any]:
    """Return every option by name, as values of JSON."""
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(options))
    return values


def options_from(values: Mapping[str, Any], *, planned: bool = False) -> FitOptions:
    """Return the checked options; an unknown key is an error, so that a typo is never silently ignored.

    ``planned``: a plan is given, so options that decide how tensors are stored are refused.
    """
    names = {field.name for field in dataclasses.fields(FitOptions)}
    for key in values:
        if key in _RENAMED:
            raise InputError(f"option {key!r} was renamed: use {_RENAMED[key]}")
        if key not in names:
            raise InputError(f"unknown option {key!r}; expected one of {', '.join(sorted(names))}")
    if "target" not in values:
        raise InputError("no target: add --target, for example --target ort-cpu; `dovetail targets` lists all targets")
    set_values = {key: value for key, value in values.items() if value is not None}
    for key in _DECIDED_BY_PLAN:
        if planned and key in set_values:
            option = f"--{key.replace('_', '-')}"
            raise InputError(
                f"{option} cannot be combined with --plan: the plan already decides how tensors are stored"
            )
    kinds = get_type_hints(FitOptions)
    return FitOptions(**{key: _typed(key, value, kinds[key]) for key, value in set_values.items()})


def read_config(path: Path) -> dict[str, Any]:
    """Read the keys of a TOML file; ``options_from`` checks them."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read as a TOML configuration ({error})") from error


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """``name=1,3,224,224`` -> shapes by input name."""
    shapes = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")
        shape = _whole_numbers(dims)
        if not equals or not name or shape is None:
            raise InputError(f"--shape {text}: expected name=1,3,224,224 with whole numbers from 1 to {LARGEST}")
        shapes[name] = shape
    return shapes


def parse_size(text: str) -> tuple[int, int]:
    """``224,224`` -> height and width."""
    sizes = _whole_numbers(text)
    if sizes is None or len(sizes) != 2:
        raise InputError(f"--size {text}: expected height,width with whole numbers from 1 to {LARGEST}")
    return sizes[0], sizes[1]


def parse_options(texts: tuple[str, ...]) -> dict[str, str]:
    """``key=value`` -> target options."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--option {text}: expected key=value")
        if key in options:
            raise InputError(f"--option {key} is given twice")
        options[key] = value
    return options


def parse_drops(texts: tuple[str, ...]) -> dict[str, float]:
    """``top1=0.01``, or ``0.02`` for all values of the metric -> the allowed drop by name."""
    drops: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if equals and not name:
            raise InputError(f"--max-drop {text}: must be NAME=NUMBER, or NUMBER for all values of the metric")
        name = name or ALL_VALUES
        if name in drops:
            raise InputError(f"--max-drop {'for all values' if name == ALL_VALUES else name} is given twice")
        try:
            drops[name] = float(number)
        except ValueError as error:
            raise InputError(f"--max-drop {text}: {number!r} is not a number") from error
    return drops


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """``0.485,0.456,0.406`` -> numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--{name} {text}: expected numbers separated by commas") from error


def _numbers(thresholds: Thresholds) -> Iterator[tuple[str, float]]:
    """The thresholds by name, those of single values of the metric too."""
    for name, value in dataclasses.asdict(thresholds).items():
        if isinstance(value, Mapping):
            yield from ((f"{name} {key}", number) for key, number in value.items())
        elif value is not None:
            yield name, value


def _whole_numbers(text: str) -> tuple[int, ...] | None:
    """Parse positive whole numbers separated by commas; None if one of them is something else."""
    numbers = [whole_number(part.strip()) for part in text.split(",")]
    return tuple(number for number in numbers if number is not None) if None not in numbers else None


def _typed(key: str, value: Any, kind: Any) -> Any:
    """Convert a value to the type of its field, lists to tuples; a wrong type is refused, naming the key."""
    if key == "thresholds" and not isinstance(value, Thresholds):
        names = {field.name for field in dataclasses.fields(Thresholds)}
        unknown = sorted(set(value) - names) if isinstance(value, Mapping) else []
        if unknown:
            raise InputError(f"unknown threshold {unknown[0]!r}; expected one of {', '.join(sorted(names))}")
    try:
        return msgspec.convert(value, kind, from_attributes=isinstance(value, Thresholds))
    except msgspec.ValidationError as error:
        raise InputError(f"option {key} = {value!r}: {error}") from error
