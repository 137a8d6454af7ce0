"""Find the operator at which target and simulation start to disagree: its inputs agree, its output does not.

A bisection over all tensors in topological order does not work: a correct branch can follow a wrong one. So the search
bisects one path of tensors, each computed from the one before, that leads to a wrong output, until a correct tensor
directly precedes a wrong one. If another input of that operator is wrong, the search continues from there.
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
from dovetail.qdq.emit import DEQUANTIZED
from dovetail.qdq.quantized_io import quantized_sample
from dovetail.qdq.simulation import load_simulation
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Build, Workbench
from dovetail.verify.quality import TensorAgreement, quality_of
from dovetail.verify.verify import FailingSample

NOWHERE = "no operator was located: with the graph cut after any tensor, target and simulation agree"
# Limit for compiling and running cut graphs: each takes the compiler seconds, on a large model minutes.
TIME_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class FaultLocation:
    """The first tensor that is wrong on the target, and the operator that computes it from correct inputs.

    ``unit``: the operator's name in the planned graph. ``place``: its original name.
    """

    place: Place
    unit: str
    storage: DType
    target_db: float
    simulation_db: float

    def __str__(self) -> str:
        return (
            f"the first wrong tensor is {self.place.tensor!r}, computed by {self.place.op_type} {str(self.place)!r}: "
            f"target {self.target_db:.1f} dB, simulation {self.simulation_db:.1f} dB against float"
        )


def locate(
    workbench: Workbench, variant: Variant, build: Build, failing: FailingSample, time_limit_s: float = TIME_LIMIT_S
) -> FaultLocation | str:
    """The first operator that the target computes wrongly, or why none was located.

    A tensor is wrong if its SQNR is further below its simulation's than an output's may be, and below the level of the
    failing sample: half way between the simulated and the actual SQNR of the bad output. Smaller rounding differences
    do not count.
    """
    try:
        return _FaultSearch(workbench, variant, build, failing, time.monotonic() + time_limit_s).run() or NOWHERE
    except TimeoutError:
        return f"the operator was not found within {time_limit_s:g} s"
    except (InputError, OSError) as error:
        return f"the operator was not found: {error}"


class _FaultSearch:
    """Cuts the emitted graph after single tensors and runs the part up to the cut on the target."""

    def __init__(
        self, workbench: Workbench, variant: Variant, build: Build, failing: FailingSample, until: float
    ) -> None:
        self._bench, self._build, self._failing, self._until = workbench, build, failing, until
        self._model = variant.model
        self._emitted = next(a.path for a in build.compiled.artifacts if a.name == MODEL)
        self._sample = quantized_sample(failing.sample, build.plan)
        simulation = load_simulation(self._emitted)
        self._emitted_names = self._tensors_in(simulation)
        self._expected = _values(self._model, list(self._emitted_names), failing.sample, build.folder, Mode.FLOAT)
        emitted_names = list(self._emitted_names.values())
        self._simulated = _values(simulation, emitted_names, self._sample, build.folder, Mode.EXACT)
        self._parents, self._nearest = self._ancestry()
        self._agreements: dict[str, TensorAgreement | None] = {}

    def run(self) -> FaultLocation | None:
        """Search upstream of every output in turn."""
        for end in self._ends():
            if (name := self._first_wrong(end)) is not None:
                return self._location(name)
        return None

    def _first_wrong(self, end: str) -> str | None:
        """A wrong tensor upstream of this one (or itself) with correct parents; None where ``end`` is correct.

        An end that no cut can measure counts as wrong, because an output computed from it is.
        """
        agreement = self._agreement(end)
        wrong = end if agreement is None or agreement.is_off else None
        while wrong is not None:
            path = self._path_to(wrong)
            good, bad = -1, len(path) - 1
            while bad - good > 1:
                middle = (good + bad) // 2
                agreement = self._agreement(path[middle])
                if agreement is None:  # cannot be measured: use the tensors around it
                    path.pop(middle)
                    bad -= 1
                elif agreement.is_off:
                    bad = middle
                else:
                    good = middle
            wrong_parent = next((name for name in self._measured_parents(path[bad]) if self._is_wrong(name)), None)
            if wrong_parent is None:
                return path[bad] if self._is_wrong(path[bad]) else None
            wrong = wrong_parent
        return None

    def _is_wrong(self, name: str) -> bool:
        agreement = self._agreement(name)
        return agreement is not None and agreement.is_off

    def _agreement(self, name: str) -> TensorAgreement | None:
        """How the target agrees on a tensor, with the graph cut after it; None where the target rejects that cut."""
        if name not in self._agreements:
            if time.monotonic() > self._until:
                raise TimeoutError
            output = self._cut_and_run(self._emitted_names[name])
            expected, simulated = self._expected[name], self._simulated[self._emitted_names[name]]
            level_db = self._failing.level_db
            self._agreements[name] = None if output is None else quality_of(expected, simulated, output, level_db)
        return self._agreements[name]

    def _measured_parents(self, name: str) -> list[str]:
        """The parents of a tensor; a parent that no cut can measure is replaced by its own parents."""
        waiting, seen, measured = list(self._parents[name]), set[str](), list[str]()
        while waiting:
            parent = waiting.pop(0)
            if parent in seen:
                continue
            seen.add(parent)
            if self._agreement(parent) is not None:
                measured.append(parent)
            else:
                waiting += self._parents[parent]
        return measured

    def _cut_and_run(self, name: str) -> Array | None:
        """The target's value of a tensor, from the shipped graph cut after it; None where the target rejects it."""
        with tempfile.TemporaryDirectory(prefix="cut-", dir=self._build.folder.parent) as folder:
            return self._run_cut(name, Path(folder))

    def _run_cut(self, name: str, folder: Path) -> Array | None:
        model = ir.load(self._emitted)
        value = next(v for node in model.graph for v in node.outputs if v.name == name)
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
            return next(iter(run(compiled, [self._sample])))[name]
        except BackendError:
            return None

    def _tensors_in(self, simulation: ir.Model) -> dict[str, str]:
        """The planned tensors that nodes produce -> the names their consumers read in the emitted graph, in graph
        order."""
        emitted = {v.name or "" for node in simulation.graph for v in node.outputs if is_float(v)}
        planned = {name for name, choice in self._build.plan.tensors.items() if choice.is_stored}
        tensors = [v.name or "" for node in self._model.graph for v in node.outputs if v.name in planned]
        names = {
            tensor: next((n for n in (DEQUANTIZED.format(tensor), tensor) if n in emitted), None) for tensor in tensors
        }
        return {tensor: name for tensor, name in names.items() if name is not None}

    def _ancestry(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """(parents, nearest): the planned tensors from which each planned tensor is computed, with none in between;
        and for any tensor, itself if it is planned, else the planned tensors from which it is computed."""
        nearest: dict[str, list[str]] = {}
        parents: dict[str, list[str]] = {}
        for node in self._model.graph:
            sources = [v.name or "" for v in node.inputs if v is not None]
            above = list(dict.fromkeys(name for source in sources for name in nearest.get(source, [])))
            for output in node.outputs:
                name = output.name or ""
                nearest[name] = [name] if name in self._emitted_names else above
                if name in self._emitted_names:
                    parents[name] = above
        return parents, nearest

    def _ends(self) -> list[str]:
        """The planned tensors that are graph outputs, or from which graph outputs are computed."""
        outputs = [v.name or "" for v in self._model.graph.outputs]
        return list(dict.fromkeys(name for output in outputs for name in self._nearest.get(output, [])))

    def _path_to(self, name: str) -> list[str]:
        """The longest path of planned tensors that ends at this one, each computed from the one before."""
        depth: dict[str, int] = {}
        for tensor in self._parents:  # in graph order, so that parents come first
            depth[tensor] = 1 + max((depth[parent] for parent in self._parents[tensor]), default=0)
        path = [name]
        while self._parents[path[0]]:
            path.insert(0, max(self._parents[path[0]], key=depth.__getitem__))
        return path

    def _location(self, name: str) -> FaultLocation:
        value = next(v for node in self._model.graph for v in node.outputs if v.name == name)
        node, agreement = value.producer(), self._agreements[name]
        if node is None or agreement is None:
            raise ValueError(f"tensor {name!r} has no producer, or was not measured")
        place = replace(at_node(node), tensor=origin_of(value).name)
        dtype = self._build.plan.tensors[name].storage.dtype
        return FaultLocation(place, node.name or "", dtype, agreement.target_db, agreement.simulation_db)


def _values(model: ir.Model, names: list[str], sample: Sample, workdir: Path, mode: Mode) -> Mapping[str, Array]:
    return {name: array.copy() for name, array in ObservedRun(model, names, workdir, mode).run(sample)}
