"""From a variant to the build that ships: knobs, build, verification, and a workaround for a wrong operator."""

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
# What counts the time of a stage and tells the caller of it.
Stage = Callable[[str], AbstractContextManager[None]]
_RULE = "what keeps the target's numbers as simulated"


def _uncounted(name: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, eq=False)
class TrialResult:
    """The build that ships, the decisions that led to it, what is true of it, and where its numbers go wrong, if so."""

    build: Build
    decisions: tuple[Decision, ...]
    verification: Verification
    located: str = ""


def run_trials(
    knobs: tuple[Knob, ...], bench: Workbench, variant: Variant, verify: Verify, stage: Stage = _uncounted
) -> TrialResult:
    """Decide what can be decided by trying, build it, and try what knobs offer against a wrong operator.

    A plan of the caller's own is carried out as it is, and one with scales that came with the model is not searched.
    """
    decisions: tuple[Decision, ...] = ()
    if variant.plan is None and variant.imported is None:
        with stage("decide"):
            variant, decisions = decide_all(knobs, bench, variant)
    validate_plan(bench.plan(variant), variant.model, bench.table)
    with stage("compile"):
        build = bench.build(variant)
    verification = verify(build)
    if verification.failing is None:
        return TrialResult(build, decisions, verification)
    with stage("locate"):
        located = locate(bench, variant, build, verification.failing)
    first = TrialResult(build, decisions, with_place(verification, str(located)), str(located))
    if isinstance(located, str) or variant.plan is not None:
        return first
    for knob in knobs:
        workaround = knob.workaround(variant, located)
        if workaround is not None:
            other = _tried(knob.name, workaround, bench, located, first, verify)
            if other.build is not first.build:
                return other
            first = other
    return first


def with_place(verification: Verification, located: str) -> Verification:
    """The verification, whose verdict on numbers says where they go wrong."""
    numerics = verification.verdicts["numerics"]
    said = replace(numerics, reason=f"{numerics.reason}; {located}")
    return replace(verification, verdicts={**verification.verdicts, "numerics": said})


def _tried(
    knob: str, workaround: Workaround, bench: Workbench, located: FaultLocation, first: TrialResult, verify: Verify
) -> TrialResult:
    """What was settled first, or the workaround where it brings the numbers back; with the decision in either case."""
    before = first.verification.verdicts["numerics"]
    try:
        build = bench.build(workaround.variant)
        verification = verify(build)
    except (BackendError, InputError, OSError, ValueError) as error:  # what ships does not hang on it
        build, verification, why_not = first.build, first.verification, str(error)
    else:
        why_not = verification.verdicts["numerics"].reason
    helps = build is not first.build and verification.verdicts["numerics"].status is Status.PASS
    as_planned = str(located.storage)
    decision = Decision(
        knob=knob,
        place=located.place,
        taken=workaround.label if helps else as_planned,
        alternatives=(
            Alternative(as_planned, {"target_sqnr_db": located.target_db, "simulation_sqnr_db": located.simulation_db}),
            Alternative(workaround.label, failure="" if helps else why_not),
        ),
        rule=_RULE,
        reason=before.reason if helps else f"keeping it in {workaround.label} was tried and does not help",
        samples=1,
    )
    chosen = TrialResult(build, first.decisions, verification) if helps else first
    return replace(chosen, decisions=(*first.decisions, decision))
