"""What is chosen by measuring plans: a precision of several, on the target, and merges that are better left float.

Sharing one range over a Concat costs accuracy where its parts are of different size. Where the target runs a Concat in
float as well, and the outputs gain more than ``MERGE_DB`` by it, that is what is planned.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import MODEL, Sample
from dovetail.encoding import QParams
from dovetail.model.origin import nodes_of
from dovetail.model.ranked import ranked_outputs
from dovetail.model.session import Mode
from dovetail.op_support import FP32
from dovetail.plan.constraints import Unit, build_problem
from dovetail.plan.make import make_plan
from dovetail.plan.request import Pin, Pins, Request
from dovetail.qdq.boundary import real_stream
from dovetail.qdq.simulation import load_simulation
from dovetail.search.rivals import RULE, Candidate, Trials, pick
from dovetail.stats import Stats
from dovetail.storage import Plan, Why
from dovetail.target import Target
from dovetail.verify.compare import compare_runs
from dovetail.verify.run import SessionRun
from dovetail.verify.verdicts import bounded_db

# What sharing one range may cost the worst output before a merge is left float.
MERGE_DB = 3.0


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge that was measured: the worst output with one range for all its parts, and with the merge in float."""

    node: str
    shared_sqnr_db: float
    float_sqnr_db: float
    in_float: bool

    def __str__(self) -> str:
        gain = self.float_sqnr_db - self.shared_sqnr_db
        where = "stays float" if self.in_float else "is stored in integers"
        return f"the merge {self.node!r} {where}: one range for all its parts costs {gain:.1f} dB"


@dataclass(frozen=True, slots=True)
class Choices:
    """What was measured: the candidate precisions, by which rule and why one was taken; and every merge."""

    precision: str
    candidates: tuple[Candidate, ...] = ()
    merges: tuple[Merge, ...] = ()
    rule: str = ""
    reason: str = ""
    samples: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What the result says of it."""
        said = [str(merge) for merge in self.merges if merge.in_float]
        if self.candidates:
            figures = "; ".join(str(candidate) for candidate in self.candidates)
            said.insert(0, f"{self.precision} was chosen, because {self.reason}: {figures} (the rule: {self.rule})")
        return tuple(said)


def choose(
    model: ir.Model,
    target: Target,
    stats: Stats,
    request: Request,
    candidates: Sequence[str],
    samples: Sequence[Sample],
    trials: Trials | None = None,
) -> tuple[Request, Choices]:
    """The request with what is best on these samples; ``candidates`` are the precisions to choose from.

    Merges are decided in simulation, where one costs a fraction of a second; precisions on the target, where there is
    one to be had.
    """
    requests: dict[str, Request] = {}
    rows: list[Candidate] = []
    merges: dict[str, tuple[Merge, ...]] = {}
    with tempfile.TemporaryDirectory(prefix="dovetail-") as name:
        bench = _Bench(model, target, stats, samples, Path(name))
        for precision in candidates or (request.precision.name,):
            asked = replace(request, precision=target.precisions[precision])
            best, db, found = bench.merged(asked) if target.floats_merges else (asked, bench.worst_db(asked), ())
            requests[precision], merges[precision] = best, found
            rows.append(Candidate(precision, db))
    if not candidates:
        return requests[rows[0].precision], Choices(rows[0].precision, merges=merges[rows[0].precision])
    measured = tuple(rows) if trials is None else trials.measured(rows, requests)
    chosen, reason = pick(measured)
    choices = Choices(chosen.precision, measured, merges[chosen.precision], RULE, reason, len(samples))
    return requests[chosen.precision], choices


class _Bench:
    """Simulates plans on a few samples."""

    def __init__(self, model: ir.Model, target: Target, stats: Stats, samples: Sequence[Sample], workdir: Path) -> None:
        self._model, self._target, self._stats = model, target, stats
        self._samples, self._workdir = samples, workdir
        self._ranked = ranked_outputs(model.graph)
        self._float = list(SessionRun(model, Mode.FLOAT, workdir)(samples))

    def plan(self, request: Request) -> Plan:
        return make_plan(self._model, self._target, self._stats, request)

    def worst_db(self, request: Request) -> float:
        """The SQNR of the worst output in simulation against float."""
        plan = self.plan(request)
        artifacts = self._target.emit(self._model, plan, self._workdir)
        simulation = load_simulation(next(a.path for a in artifacts if a.name == MODEL))
        stream = real_stream(SessionRun(simulation, Mode.EXACT, self._workdir), plan)
        outputs = compare_runs(self._float, stream(self._samples), self._ranked).outputs
        return min((bounded_db(one.sqnr_db) for one in outputs.values()), default=0.0)

    def merged(self, request: Request) -> tuple[Request, float, tuple[Merge, ...]]:
        """The request with every merge in float that gains by it, what that gives, and what was measured."""
        best, merges = self.worst_db(request), []
        stored = self.plan(request).tensors
        for unit in build_problem(self._model, self._target).units:
            if len(unit.shared()) < 2 or not isinstance(stored[unit.outputs[0].name or ""].storage, QParams):
                continue
            other = _in_float(request, unit)
            found = self.worst_db(other)
            node = ", ".join(nodes_of(unit.nodes[0])) or unit.name
            merges.append(Merge(node, best, found, in_float=found - best > MERGE_DB))
            if merges[-1].in_float:
                request, best = other, found
        return request, best, tuple(merges)


def _in_float(request: Request, unit: Unit) -> Request:
    """The same request with one merge in float, which reads every part as it is stored."""
    text = f"one range for all parts of {unit.label} costs more than {MERGE_DB:g} dB"
    edges = {operand.edge: text for operand in unit.shared() if not operand.constant}
    return request.pinned(Pins({unit.name: Pin(FP32, Why.MEASURED, text)}, separate=edges))
