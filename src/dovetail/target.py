"""What a target consists of: its name, the vendor's facts, what it accepts, how it is reached, what is done for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dovetail.backend import Backend
from dovetail.op_support import OpTable
from dovetail.pass_record import Pass
from dovetail.rules.rule import RetiredCode, Rule
from dovetail.trials.knob import Knob


@dataclass(frozen=True, slots=True)
class Rewrites:
    """The passes that make a graph as the target wants it: ``graph`` on the float graph before it is calibrated,
    ``quantized`` on another tool's QDQ model before its scales are read."""

    graph: tuple[Pass, ...]
    quantized: tuple[Pass, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """One chip or runtime that models are fitted to.

    ``facts``: the vendor's own typed record (chip, GPU, options), which the target's rules read. ``rules``: its own;
    the generic ones hold everywhere. ``knobs``: what is chosen by trying, in this order.
    """

    name: str
    facts: object
    table: OpTable
    backend: Backend
    rewrites: Rewrites
    rules: tuple[Rule, ...] = ()
    knobs: tuple[Knob, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """Targets that are opened by one name: what may stand behind its colon, the keys that ``--option`` takes, the
    rules that hold for all of them, and codes of earlier versions."""

    open: Callable[[str, Mapping[str, str]], Target]
    variants: tuple[str, ...] = ()
    option_keys: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    retired: tuple[RetiredCode, ...] = ()
