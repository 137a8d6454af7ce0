"""What a target consists of: its name, the vendor's facts, its op table, its backend, its rewrites, rules and knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.backend import Backend
from dovetail.op_support import OpTable
from dovetail.pass_record import Pass, PassRecord
from dovetail.rules.rule import RetiredCode, Rule
from dovetail.trials.knob import Knob


@dataclass(frozen=True, slots=True)
class Rewrites:
    """The passes that a target requires: ``graph`` on the float graph before calibration, ``quantized`` on another
    tool's QDQ model before its scales are read. ``blocks``: the last one on the float graph, for the layers whose
    weights are quantized in blocks; it gets their block sizes by the names of their nodes."""

    graph: tuple[Pass, ...]
    quantized: tuple[Pass, ...] = ()
    blocks: Callable[[ir.Model, Mapping[str, int]], PassRecord] | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One chip or runtime that models are fitted to.

    ``facts``: the vendor's own typed record (chip, GPU, options), which the target's rules read. ``rules``: the rules
    that apply in addition to the generic ones. ``knobs``: what is chosen by trial, in this order.
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
    """Targets with a common name, opened by options and the suffix after the colon of ``--target``, such as a chip.

    ``suffixes``: those that `dovetail targets` lists. ``option_keys``: the keys of ``--option``. ``rules``: those of
    all targets of the family. ``retired``: codes of earlier versions.
    """

    open: Callable[[str, Mapping[str, str]], Target]
    suffixes: tuple[str, ...] = ()
    option_keys: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    retired: tuple[RetiredCode, ...] = ()
