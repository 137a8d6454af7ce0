"""Where target and simulation disagree: the operator whose inputs all agree and whose output does not.

Tensors in topological order are not monotone: a branch that is right can come behind one that is wrong. So the search
goes up from a wrong output along one path of tensors, each made from the one before, and halves that path until a right
tensor stands directly in front of a wrong one. Where another input of that operator is wrong, it goes on from there.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import MODEL, Artifact, Sample
from dovetail.encoding import Array, DType
from dovetail.errors import BackendError, InputError
from dovetail.finding import Place
from dovetail.model.edit import is_float
from dovetail.model.observe import ObservedRun
from dovetail.model.origin import origin_of
from dovetail.model.place import at_node
from dovetail.model.session import Mode
from dovetail.model.write import write
from dovetail.passes.remove_unused import remove_unused
from dovetail.qdq.boundary import stored_sample
from dovetail.qdq.emit import READ
from dovetail.qdq.simulation import load_simulation
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Build, Workbench
from dovetail.verify.quality import TensorAgreement, quality_of
from dovetail.verify.verify import FailingSample

NOWHERE = "no tensor is off where the graph is cut behind it: only the whole graph is"
# How long cuts are built and run at the most: each takes a compiler seconds, on a large model minutes.
TIME_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class FaultLocation:
    """The tensor that is off on the target although all it is made from is right, and the operator that makes it.

    ``unit`` is the operator's name in the graph that was planned, ``place`` has the caller's.
    """

    place: Place
    unit: str
    storage: DType
    target_db: float
    simulation_db: float

    def __str__(self) -> str:
        return (
            f"the first tensor that is off is {self.place.tensor!r}, made by {self.place.op_type} {str(self.place)!r}: "
            f"target {self.target_db:.1f} dB, simulation {self.simulation_db:.1f} dB against float"
        )


def locate(
    bench: Workbench, variant: Variant, build: Build, failing: FailingSample, time_limit_s: float = TIME_LIMIT_S
) -> FaultLocation | str:
    """The operator at which the target goes wrong, or why none was found: perhaps only the whole graph is off.

    A tensor is off when it is further below its simulation than an output may be, and below the level of the failing
    sample: half way between what the bad output should be and what it is. Rounding that nobody would notice is not
    what is looked for.
    """
    try:
        return _Search(bench, variant, build, failing, time.monotonic() + time_limit_s).run() or NOWHERE
    except TimeoutError:
        return f"the operator was not found within {time_limit_s:g} s"
    except (InputError, OSError) as error:
        return f"the operator was not found: {error}"


class _Search:
    """Cuts the emitted graph behind tensors and runs what is in front of the cut on the target."""

    def __init__(self, bench: Workbench, variant: Variant, build: Build, failing: FailingSample, until: float) -> None:
        self._bench, self._build, self._failing, self._until = bench, build, failing, until
        self._model = variant.model
        self._emitted = next(a.path for a in build.compiled.artifacts if a.name == MODEL)
        self._sample = stored_sample(failing.sample, build.plan)
        simulation = load_simulation(self._emitted)
        self._reads = self._stored_reads(simulation)
        self._expected = _values(self._model, list(self._reads), failing.sample, build.folder, Mode.FLOAT)
        self._simulated = _values(simulation, list(self._reads.values()), self._sample, build.folder, Mode.EXACT)
        self._parents, self._nearest = self._made_from()
        self._known: dict[str, TensorAgreement | None] = {}

    def run(self) -> FaultLocation | None:
        """Up from every output in turn."""
        for end in self._ends():
            if (found := self._up_from(end)) is not None:
                return self._located(found)
        return None

    def _up_from(self, end: str) -> str | None:
        """The wrong tensor upstream of this one, all of whose parents are right; None where ``end`` is right itself.

        An end of which no cut shows anything may well be wrong: what is made of it is.
        """
        quality = self._quality(end)
        wrong = end if quality is None or quality.is_off else None
        while wrong is not None:
            path = self._path_to(wrong)
            good, bad = -1, len(path) - 1
            while bad - good > 1:
                middle = (good + bad) // 2
                quality = self._quality(path[middle])
                if quality is None:  # nothing is known of this one: look at those around it
                    path.pop(middle)
                    bad -= 1
                elif quality.is_off:
                    bad = middle
                else:
                    good = middle
            other = next((name for name in self._known_parents(path[bad]) if self._is_off(name)), None)
            if other is None:
                return path[bad] if self._is_off(path[bad]) else None
            wrong = other
        return None

    def _is_off(self, name: str) -> bool:
        quality = self._quality(name)
        return quality is not None and quality.is_off

    def _quality(self, name: str) -> TensorAgreement | None:
        """A tensor at a cut behind it; None where the compiler refuses that cut."""
        if name not in self._known:
            if time.monotonic() > self._until:
                raise TimeoutError
            found = self._cut_and_run(self._reads[name])
            expected, simulated = self._expected[name], self._simulated[self._reads[name]]
            level_db = self._failing.level_db
            self._known[name] = None if found is None else quality_of(expected, simulated, found, level_db)
        return self._known[name]

    def _known_parents(self, name: str) -> list[str]:
        """What a tensor is made from; in place of one that no cut shows, what that is made from."""
        waiting, seen, known = list(self._parents[name]), set[str](), list[str]()
        while waiting:
            parent = waiting.pop(0)
            if parent in seen:
                continue
            seen.add(parent)
            if self._quality(parent) is not None:
                known.append(parent)
            else:
                waiting += self._parents[parent]
        return known

    def _cut_and_run(self, read: str) -> Array | None:
        """What the target makes of the shipped graph that ends at this tensor; None where it does not take it."""
        with tempfile.TemporaryDirectory(prefix="cut-", dir=self._build.folder.parent) as name:
            return self._run_cut(read, Path(name))

    def _run_cut(self, read: str, folder: Path) -> Array | None:
        model = ir.load(self._emitted)
        value = next(v for node in model.graph for v in node.outputs if v.name == read)
        model.graph.outputs.clear()
        model.graph.outputs.append(value)
        remove_unused(model)
        for unused in [v for v in model.graph.inputs if not v.uses()]:
            model.graph.inputs.remove(unused)
        written = write(model, folder / "model.onnx")
        compiled = self._bench.compile((Artifact(MODEL, written[0]),), folder)
        run = self._bench.backend.runner.run
        if compiled.error or run is None:
            return None
        try:
            return next(iter(run(compiled, [self._sample])))[read]
        except BackendError:
            return None

    def _stored_reads(self, simulation: ir.Model) -> dict[str, str]:
        """The planned tensors that a node of the graph makes -> what their readers see, in graph order."""
        made = {v.name or "" for node in simulation.graph for v in node.outputs if is_float(v)}
        stored = {name for name, choice in self._build.plan.tensors.items() if choice.is_stored}
        values = [v.name or "" for node in self._model.graph for v in node.outputs if v.name in stored]
        seen = {name: next((read for read in (READ.format(name), name) if read in made), None) for name in values}
        return {name: read for name, read in seen.items() if read is not None}

    def _made_from(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """The stored tensors that each stored tensor is made from, with nothing stored in between; and those that any
        tensor is, or is made from."""
        nearest: dict[str, list[str]] = {}
        parents: dict[str, list[str]] = {}
        for node in self._model.graph:
            sources = [v.name or "" for v in node.inputs if v is not None]
            above = list(dict.fromkeys(name for source in sources for name in nearest.get(source, [])))
            for output in node.outputs:
                name = output.name or ""
                nearest[name] = [name] if name in self._reads else above
                if name in self._reads:
                    parents[name] = above
        return parents, nearest

    def _ends(self) -> list[str]:
        """The stored tensors that the graph's outputs are made from, or are."""
        outputs = [v.name or "" for v in self._model.graph.outputs]
        return list(dict.fromkeys(name for output in outputs for name in self._nearest.get(output, [])))

    def _path_to(self, name: str) -> list[str]:
        """A chain of stored tensors from the inputs to this one, each made from the one before: the longest."""
        depth: dict[str, int] = {}
        for each in self._parents:  # in graph order, so that parents come first
            depth[each] = 1 + max((depth[parent] for parent in self._parents[each]), default=0)
        path = [name]
        while self._parents[path[0]]:
            path.insert(0, max(self._parents[path[0]], key=depth.__getitem__))
        return path

    def _located(self, name: str) -> FaultLocation:
        value = next(v for node in self._model.graph for v in node.outputs if v.name == name)
        node, quality = value.producer(), self._known[name]
        if node is None or quality is None:
            raise ValueError(f"{name!r} is made by no node, or was not measured")
        place = replace(at_node(node), tensor=origin_of(value).name)
        storage = self._build.plan.tensors[name].storage.dtype
        return FaultLocation(place, node.name or "", storage, quality.target_db, quality.simulation_db)


def _values(model: ir.Model, names: list[str], sample: Sample, workdir: Path, mode: Mode) -> Mapping[str, Array]:
    return {name: array.copy() for name, array in ObservedRun(model, names, workdir, mode).run(sample)}
