"""From a variant to the build that ships: knobs, build, verification, and a workaround if an operator is wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from dovetail.errors import BackendError, InputError
from dovetail.finding import Status
from dovetail.plan.validate import validate_plan
from dovetail.trials.decision import Alternative, Decision
from dovetail.trials.knob import Knob, Workaround, decide_all
from dovetail.trials.locate import FaultLocation, locate
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Build, Workbench
from dovetail.verify.verify import Verification

Verify = Callable[[Build], Verification]
# Measures the time of a stage and reports it to the caller.
Stage = Callable[[str], AbstractContextManager[None]]
_CRITERION = "the workaround, if the target's outputs agree with the simulation with it"


def _untimed(name: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, eq=False)
class TrialResult:
    """The build that ships, its decisions, its verification, and where target and simulation disagree, if they do."""

    build: Build
    decisions: tuple[Decision, ...]
    verification: Verification
    located: str = ""


def run_trials(
    knobs: tuple[Knob, ...], workbench: Workbench, variant: Variant, verify: Verify, stage: Stage = _untimed
) -> TrialResult:
    """Run the knobs, build and verify the variant, and try the knobs' workarounds if the target computes it wrongly.

    No knob is run for a plan of the caller's own.
    """
    decisions: tuple[Decision, ...] = ()
    if variant.plan is None:
        with stage("decide"):
            variant, decisions = decide_all(knobs, workbench, variant)
    validate_plan(workbench.plan(variant), variant.model, workbench.table)
    with stage("compile"):
        build = workbench.build(variant)
    verification = verify(build)
    if verification.failing is None:
        return TrialResult(build, decisions, verification)
    with stage("locate"):
        located = locate(workbench, variant, build, verification.failing)
    result = TrialResult(build, decisions, with_location(verification, str(located)), str(located))
    if isinstance(located, str) or variant.plan is not None:
        return result
    for knob in knobs:
        workaround = knob.workaround(variant, located)
        if workaround is not None:
            tried = _try_workaround(knob.name, workaround, workbench, located, result, verify)
            if tried.build is not result.build:
                return tried
            result = tried
    return result


def with_location(verification: Verification, located: str) -> Verification:
    """The verification with the location of the wrong operator in the reason of its ``numerics`` verdict."""
    numerics = verification.verdicts["numerics"]
    with_reason = replace(numerics, reason=f"{numerics.reason}; {located}")
    return replace(verification, verdicts={**verification.verdicts, "numerics": with_reason})


def _try_workaround(
    knob: str,
    workaround: Workaround,
    workbench: Workbench,
    located: FaultLocation,
    current: TrialResult,
    verify: Verify,
) -> TrialResult:
    """The result with the workaround if its ``numerics`` verdict passes, else the current one; with the decision."""
    before = current.verification.verdicts["numerics"]
    try:
        build = workbench.build(workaround.variant)
        verification = verify(build)
    except (BackendError, InputError, OSError, ValueError) as error:  # the current build still ships
        build, verification, why_not = current.build, current.verification, str(error)
    else:
        why_not = verification.verdicts["numerics"].reason
    helps = build is not current.build and verification.verdicts["numerics"].status is Status.PASS
    as_planned = str(located.storage)
    decision = Decision(
        knob=knob,
        place=located.place,
        taken=workaround.label if helps else as_planned,
        alternatives=(
            Alternative(as_planned, {"target_sqnr_db": located.target_db, "simulation_sqnr_db": located.simulation_db}),
            Alternative(workaround.label, failure="" if helps else why_not),
        ),
        rule=_CRITERION,
        reason=before.reason if helps else f"{workaround.label} was tried and does not help",
        samples=1,
    )
    chosen = TrialResult(build, current.decisions, verification) if helps else current
    return replace(chosen, decisions=(*current.decisions, decision))
