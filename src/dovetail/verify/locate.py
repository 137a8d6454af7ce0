"""Where target and simulation part: the first stored tensor that is off, found by cutting the shipped graph there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import MODEL, Artifact, Sample
from dovetail.encoding import Array
from dovetail.errors import BackendError
from dovetail.finding import Thresholds
from dovetail.model.observe import ObservedRun
from dovetail.model.origin import nodes_of, origin_of
from dovetail.model.session import Mode
from dovetail.model.write import write
from dovetail.numerics.metrics import Comparison
from dovetail.passes.remove_unused import remove_unused
from dovetail.qdq.boundary import stored_sample
from dovetail.qdq.emit import READ
from dovetail.storage import Plan
from dovetail.target import Target
from dovetail.verify.verdicts import bounded_db, target_db

NOWHERE = "no tensor is off where the graph is cut behind it: only the whole graph is"


@dataclass(frozen=True, slots=True)
class Located:
    """The first tensor whose value on the target is off, the operator that makes it, and how far off it is.

    ``unit`` is the operator's name in the graph that was planned, ``node`` the caller's.
    """

    tensor: str
    unit: str
    node: str
    op_type: str
    target_db: float
    simulation_db: float

    def __str__(self) -> str:
        return (
            f"the first tensor that is off is {self.tensor!r}, made by {self.op_type} {self.node!r}: "
            f"target {self.target_db:.1f} dB, simulation {self.simulation_db:.1f} dB against float"
        )


def locate(
    model: ir.Model,
    emitted: Path,
    simulation: ir.Model,
    plan: Plan,
    target: Target,
    sample: Sample,
    workdir: Path,
    thresholds: Thresholds,
    level_db: float,
) -> Located | None:
    """Bisect over the stored tensors in graph order; None when no cut is off, so that only the whole graph is.

    A tensor is off when it is further below its simulation than an output may be, and below ``level_db``: half way
    between what the bad output should be and what it is. Rounding that nobody would notice is not what is looked for.
    """
    reads = _stored_reads(simulation, plan)
    expected = _values(model, list(reads), sample, workdir, Mode.FLOAT)
    simulated = _values(simulation, list(reads.values()), stored_sample(sample, plan), workdir, Mode.EXACT)
    names = list(reads)
    found: dict[str, Located] = {}
    good, bad = -1, len(names)
    while bad - good > 1:
        middle = (good + bad) // 2
        name = names[middle]
        value = _cut_and_run(emitted, reads[name], target, stored_sample(sample, plan), workdir / "cut")
        if value is None:  # the compiler refuses this cut: nothing is learned, look at the one in front
            names.pop(middle)
            bad -= 1
            continue
        theirs = bounded_db(Comparison.of(expected[name], simulated[reads[name]]).sqnr_db)
        ours = target_db(Comparison.of(expected[name], value).sqnr_db, theirs)
        if theirs - ours > thresholds.numerics_drop_db and ours < level_db:
            found[name] = _located(model, name, ours, theirs)
            bad = middle
        else:
            good = middle
    return found.get(names[bad]) if bad < len(names) else None


def _stored_reads(simulation: ir.Model, plan: Plan) -> dict[str, str]:
    """The planned tensors that a node of the graph makes -> what their readers see, in graph order."""
    makers = [v.name or "" for node in simulation.graph for v in node.outputs]
    planned = {READ.format(name): name for name, choice in plan.tensors.items() if choice.storage.dtype.is_quantized}
    inputs = {v.name for v in simulation.graph.inputs}
    return {planned[read]: read for read in makers if read in planned and planned[read] not in inputs}


def _values(model: ir.Model, names: list[str], sample: Sample, workdir: Path, mode: Mode) -> Mapping[str, Array]:
    return {name: array.copy() for name, array in ObservedRun(model, names, workdir, mode).run(sample)}


def _cut_and_run(emitted: Path, read: str, target: Target, sample: Sample, folder: Path) -> Array | None:
    """What the target makes of the shipped graph that ends at this tensor; None where it does not take it."""
    folder.mkdir(exist_ok=True)
    model = ir.load(emitted)
    value = next(v for node in model.graph for v in node.outputs if v.name == read)
    model.graph.outputs.clear()
    model.graph.outputs.append(value)
    remove_unused(model)
    for unused in [v for v in model.graph.inputs if not v.uses()]:
        model.graph.inputs.remove(unused)
    written = write(model, folder / "model.onnx")
    compiled = target.try_out((Artifact(MODEL, written[0]),), folder)
    if compiled.error or target.run is None:
        return None
    try:
        return next(iter(target.run(compiled, [sample])))[read]
    except BackendError:
        return None


def _located(model: ir.Model, name: str, target_db: float, simulation_db: float) -> Located:
    value = next(v for node in model.graph for v in node.outputs if v.name == name)
    node = value.producer()
    if node is None:
        raise ValueError(f"{name!r} is made by no node")
    original = ", ".join(nodes_of(node)) or node.name or ""
    return Located(origin_of(value).name, node.name or "", original, node.op_type, target_db, simulation_db)
