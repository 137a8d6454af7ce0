"""``qairt:SDK/CHIP``: files and commands for Qualcomm's own converters, and what they are predicted to make of them."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.backend import Artifact, Backend, CompileResult, Probe, ReadBack, Runner
from dovetail.storage import Plan
from dovetail.target import Family, Rewrites, Target
from dovetail.targets.htp.rewrites import REWRITES
from dovetail.targets.htp.rules import GRAPH_RULES
from dovetail.targets.htp.table import htp_table
from dovetail.targets.htp.workarounds import needed
from dovetail.targets.htp.workarounds.workaround import limited
from dovetail.targets.qairt.options import KEYS, SUFFIXES, QairtFacts, read_facts
from dovetail.targets.qairt.rules import RULES as QAIRT_RULES
from dovetail.targets.qnn_htp.target import emit
from dovetail.trials.knobs.mixed import mixed
from dovetail.trials.knobs.wide_outputs import WIDE_OUTPUTS

RULES = (*GRAPH_RULES, *QAIRT_RULES)
_NO_SDK = "the QAIRT SDK is not installed: set QAIRT_SDK_ROOT to its folder"
_CANNOT_RUN = "the converted model runs on a device"


def open_target(suffix: str, options: Mapping[str, str]) -> Target:
    """Return the target for one SDK version and one chip."""
    facts = read_facts(suffix, options)
    workarounds = needed(facts.sdk)
    passes = (*REWRITES, *(change for workaround in workarounds for change in workaround.passes))
    return Target(
        name=facts.name,
        facts=facts,
        table=limited(htp_table(facts.name, facts.chip), workarounds),
        backend=_backend(facts),
        rewrites=Rewrites(() if facts.keep_graph else passes),
        rules=RULES,
        knobs=(mixed(WIDE_OUTPUTS),),
    )


FAMILY = Family(open_target, SUFFIXES, KEYS, RULES)


def _probe() -> Probe:
    return Probe(False, {}, _NO_SDK)


def _compile(artifacts: tuple[Artifact, ...], folder: object) -> CompileResult:
    return CompileResult(artifacts, error=_NO_SDK, finished=False)


def _read_back(compiled: CompileResult, plan: Plan) -> ReadBack:
    return ReadBack((), "", unparsed=_NO_SDK)


def _backend(facts: QairtFacts) -> Backend:
    return Backend(_probe, emit, _compile, _read_back, Runner(None, _CANNOT_RUN))
