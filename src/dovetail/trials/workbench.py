"""The workbench: the only code that plans, simulates, builds, runs and times variants of a model for a target.

Results are cached by the content of the emitted files, so nothing is simulated or compiled twice. Every build has its
own folder with the layout of a run directory: the emitted files, and ``compile/`` with the compiler's output.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock

import onnx_ir as ir

from dovetail.backend import MODEL, Artifact, Backend, CompileResult, MeasuredLatency, Sample, TimedProgram
from dovetail.document import with_paths_moved
from dovetail.edge import Edge
from dovetail.encoding import Array, QParams
from dovetail.files import file_sha256
from dovetail.model.observe import ObservedRun
from dovetail.model.ranked import ranked_outputs
from dovetail.model.session import Mode
from dovetail.op_support import OpTable
from dovetail.plan.constraints import build_problem
from dovetail.plan.elements import Element
from dovetail.plan.make import make_plan
from dovetail.plan.rounded_weights import with_rounded_weights
from dovetail.qdq.quantized_io import RunSamples, quantized_sample, with_float_io
from dovetail.qdq.simulation import load_simulation
from dovetail.storage import Plan
from dovetail.trials.agreement_db import mean_db, worst_db, worst_db_per_sample
from dovetail.trials.cached_measurements import CachedMeasurements
from dovetail.trials.goal import Goal
from dovetail.trials.variant import Variant
from dovetail.verify.compare import Agreement, compare_runs
from dovetail.verify.run import SessionRun, followed
from dovetail.verify.segmented import SegmentedSimulation
from dovetail.verify.switched import SwitchedSimulation

COMPILED = "compile"

Progress = Callable[[int, int | None], None]
View = Callable[[Sample], Sample]
# The plan of a variant, its files, and the hash of their content.
Emitted = tuple[Plan, tuple[Artifact, ...], str]


@dataclass(frozen=True, slots=True)
class MetricEvaluation:
    """The caller's metric: the held-out samples, and the function that computes its values from outputs.

    ``lower_is_better``: which of these value names are errors. ``key``: identifies samples and function in the cache;
    empty: not cached.
    """

    samples: Callable[[], Iterable[Sample]]
    values: Callable[[Iterator[Sample]], Mapping[str, float]]
    lower_is_better: Callable[[Iterable[str]], tuple[str, ...]]
    key: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Build:
    """A compiled variant: its plan, the compiler's result, the folder with its files, and the hash of what was emitted.

    Builds with equal hashes are the same program.
    """

    plan: Plan
    compiled: CompileResult
    folder: Path
    digest: str = ""


@dataclass(frozen=True, slots=True)
class SimulatedSqnr:
    """The SQNR of a variant's worst output against float, in simulation: mean over samples, and over all together.

    ``digest``: the hash of what was emitted.
    """

    digest: str
    mean_db: float
    pooled_db: float


class Workbench:
    """Tries variants of one model on one target.

    ``available``: whether the target's compiler is installed. ``source``: iterates over the calibration samples from
    the start. ``knob_options``: the caller's options for knobs, by the knob's name. ``tail``: computes the outputs of
    the caller's model, if the target cannot run all of it. ``goal``: what a search for a precision aims at.
    ``baseline``: builds the first program that the target is compared with, if there is one. ``measurements``:
    those of an interrupted run.
    """

    def __init__(
        self,
        table: OpTable,
        backend: Backend,
        source: Callable[[], Iterable[Sample]],
        folder: Path,
        *,
        available: bool = True,
        knob_options: Mapping[str, str] | None = None,
        metric: MetricEvaluation | None = None,
        goal: Goal | None = None,
        baseline: Callable[[], CompileResult | None] = lambda: None,
        tail: ir.Model | None = None,
        measurements: CachedMeasurements | None = None,
        progress: Progress = lambda done, total: None,
    ) -> None:
        self.table, self.backend, self.available = table, backend, available
        self.knob_options, self.metric, self.progress = dict(knob_options or {}), metric, progress
        self.goal, self.baseline = goal or Goal(), baseline
        self._source, self._folder, self._tail = source, folder, tail
        self._measurements = measurements or CachedMeasurements()
        self._samples: list[Sample] = []
        self._float: dict[int, tuple[ir.Model, list[Sample]]] = {}
        self._agreements: dict[tuple[str, int, View | None], Agreement] = {}
        self._builds: dict[str, Future[tuple[CompileResult, Path]]] = {}
        self._float_values: Mapping[str, float] | None = None
        self._drops: dict[str, dict[str, float]] = {}
        self._lock = Lock()

    def samples(self, count: int) -> list[Sample]:
        """The first ``count`` calibration samples, or all if there are fewer."""
        if len(self._samples) < count:
            self._samples = list(itertools.islice(self._source(), count))
        return self._samples[:count]

    def plan(self, variant: Variant) -> Plan:
        """The plan of a variant."""
        if variant.plan is not None:
            return variant.plan
        plan = make_plan(variant.model, self.table, variant.stats, variant.request, variant.imported)
        if not variant.rounded:
            return plan
        return with_rounded_weights(plan, build_problem(variant.model, self.table), variant.rounded)

    def compare(self, variant: Variant, count: int, *, view: View | None = None) -> Agreement:
        """Compare the simulation of a variant with float, on the first ``count`` samples.

        ``view``: gives what is compared from the outputs of a sample, for example parts of them.
        """
        with self._emitted(variant) as emitted:
            return self._agreement(variant, emitted, count, view)

    def simulated_sqnr(self, variant: Variant, count: int) -> SimulatedSqnr:
        """The SQNR of the simulation against float; cached, so that a resumed run has it."""
        with self._emitted(variant) as emitted:

            def measured() -> dict[str, float]:
                agreement = self._agreement(variant, emitted, count, None)
                return {"mean": mean_db(agreement), "pooled": worst_db(agreement)}

            figures = self._measurements.of(("simulated", emitted[2], count), measured, ("mean", "pooled"))
        return SimulatedSqnr(emitted[2], figures["mean"], figures["pooled"])

    def cached_values(
        self, variant: Variant, what: str, make: Callable[[], dict[str, float]], names: Collection[str] = ()
    ) -> dict[str, float]:
        """Values of a variant by name, measured unless a run that was interrupted has measured them.

        ``names``: the names of the values, if they are known before.
        """
        with self._emitted(variant) as (_, _, digest):
            return self._measurements.of((what, digest), make, names)

    def cached_times(
        self, builds: Sequence[Build], what: str, make: Callable[[], dict[str, float]], names: Collection[str]
    ) -> dict[str, float]:
        """The times of these builds, measured together unless a run that was interrupted has measured them."""
        return self._measurements.of((what, *(build.digest for build in builds)), make, names)

    def _agreement(self, variant: Variant, emitted: Emitted, count: int, view: View | None) -> Agreement:
        plan, artifacts, digest = emitted
        key = digest, count, view
        if key not in self._agreements:
            simulation = load_simulation(_model(artifacts))
            run_simulation = with_float_io(SessionRun(simulation, Mode.EXACT, self._scratch()), plan)
            self._agreements[key] = self._against_float(variant.model, run_simulation, count, view)
        return self._agreements[key]

    def simulation(self, variant: Variant) -> tuple[Plan, RunSamples]:
        """The plan of a variant, and its simulation up to the outputs of the caller's model."""
        with self._emitted(variant) as emitted:
            return emitted[0], self._simulation(emitted)

    def _simulation(self, emitted: Emitted) -> RunSamples:
        plan, artifacts, _ = emitted
        simulation = SessionRun(load_simulation(_model(artifacts)), Mode.EXACT, self._scratch())
        return followed(with_float_io(simulation, plan), self._tail, self._scratch())

    def on_target(self, variant: Variant) -> RunSamples | None:
        """A compiled variant on the target, up to the outputs of the caller's model; None if it cannot run here."""
        runner = self.backend.runner.run
        if not self.available or runner is None:
            return None
        build = self.build(variant)
        if build.compiled.error:
            return None
        return followed(with_float_io(partial(runner, build.compiled), build.plan), self._tail, self._scratch())

    def simulated_graph(self, variant: Variant) -> ir.Model:
        """The graph of a variant's simulation, with float inputs and outputs."""
        request = replace(variant.request, quantized_io=False)
        with self._emitted(replace(variant, request=request)) as (_, artifacts, _):
            return load_simulation(_model(artifacts))

    def observe(self, graph: ir.Model, names: Sequence[str], count: int) -> Iterator[Iterable[tuple[str, Array]]]:
        """Run a simulation's graph on the first ``count`` calibration samples, one at a time, and yield these tensors.

        They are overwritten by the next sample.
        """
        run = ObservedRun(graph, names, self._scratch(), Mode.EXACT)
        return map(run.run, itertools.islice(self._source(), count))

    def drops(self, variant: Variant) -> dict[str, float]:
        """By how much each value of the metric gets worse in the simulation of a variant, on held-out samples."""
        metric = self.metric
        if metric is None:
            raise ValueError("there is no metric")
        with self._emitted(variant) as emitted:
            digest, measurements = emitted[2], self._measurements if metric.key else CachedMeasurements()
            if digest not in self._drops:
                make = partial(self._measured_drops, metric, variant.model, emitted)
                self._drops[digest] = measurements.of((f"drops {metric.key}", digest), make)
        return self._drops[digest]

    def _measured_drops(self, metric: MetricEvaluation, model: ir.Model, emitted: Emitted) -> dict[str, float]:
        if self._float_values is None:
            in_float = followed(SessionRun(model, Mode.FLOAT, self._scratch()), self._tail, self._scratch())
            self._float_values = metric.values(in_float(metric.samples()))
        figures = metric.values(self._simulation(emitted)(metric.samples()))
        lower = metric.lower_is_better(figures)
        return {
            name: (value - figures[name]) * (-1 if name in lower else 1) for name, value in self._float_values.items()
        }

    def worst_db(self, variant: Variant, count: int) -> float:
        """The SQNR of the worst output of the simulation against float."""
        return worst_db(self.compare(variant, count))

    def sqnr_per_sample(self, variant: Variant, count: int) -> list[float]:
        """The SQNR of the worst output of the simulation against float on each of the first ``count`` samples.

        One sample at a time is in memory. The values are cached, so that a resumed run has them.
        """
        with self._emitted(variant) as (plan, artifacts, digest):

            def measured() -> dict[str, float]:
                simulation = SessionRun(load_simulation(_model(artifacts)), Mode.EXACT, self._scratch())
                run, in_float = with_float_io(simulation, plan), SessionRun(variant.model, Mode.FLOAT, self._scratch())
                samples, again = itertools.tee(itertools.islice(self._source(), count))
                agreement = compare_runs(in_float(samples), run(again), ranked_outputs(variant.model.graph))
                return {f"{number}": db for number, db in enumerate(worst_db_per_sample(agreement))}

            return list(self._measurements.of(("simulated per sample", digest, count), measured).values())

    def switched(self, variant: Variant, alternatives: Mapping[Edge, QParams], count: int) -> SwitchedSimulation:
        """A simulation in which these edges can be switched to other quantization parameters, compared with float."""
        with self._emitted(variant) as (plan, artifacts, _):
            samples = self.samples(count)
            exact = self._float_outputs(variant.model, count)
            ranked = ranked_outputs(variant.model.graph)
            return SwitchedSimulation(_model(artifacts), plan, alternatives, samples, exact, ranked, self._scratch())

    def segmented(self, model: ir.Model, plan: Plan, elements: Sequence[Element]) -> SegmentedSimulation:
        """A simulation in which any of these elements of a plan can be quantized alone."""
        return SegmentedSimulation(model, plan, elements, self._scratch())

    def build(self, variant: Variant) -> Build:
        """Compile a variant; identical emitted files are compiled once."""
        with self._emitted(variant) as (plan, artifacts, digest):
            with self._lock:  # if several threads have identical files, one compiles them
                is_new = digest not in self._builds
                future = self._builds.setdefault(digest, Future())
            if is_new:
                self._compile_into(future, artifacts, self._folder / digest[:16])
        compiled, folder = future.result()
        return Build(plan, compiled, folder, digest)

    def _compile_into(
        self, future: Future[tuple[CompileResult, Path]], artifacts: tuple[Artifact, ...], folder: Path
    ) -> None:
        try:
            shutil.rmtree(folder, ignore_errors=True)
            scratch = artifacts[0].path.parent
            scratch.rename(folder)
            files = with_paths_moved(artifacts, tuple[Artifact, ...], scratch, folder)
            future.set_result((self.compile(files, folder / COMPILED), folder))
        except BaseException as error:
            future.set_exception(error)
            raise

    def build_each(self, variants: Sequence[Variant]) -> list[Build]:
        """Build several variants, one per core at a time; vendor tools run in child processes."""
        contexts = [copy_context() for _ in variants]  # context variables of the run: whether it uses the cache
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda context, variant: context.run(self.build, variant), contexts, variants))

    def compile(self, artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        """Compile files with the target's compiler; without a compiler, the result has only these files."""
        folder.mkdir(parents=True, exist_ok=True)
        return self.backend.compile(artifacts, folder) if self.available else CompileResult(artifacts)

    def run(self, build: Build, variant: Variant, count: int) -> Agreement:
        """Compare a build on the target with float, on the first ``count`` samples."""
        runner = self.backend.runner.run
        if runner is None:
            raise ValueError(self.backend.runner.why_not)
        outputs = with_float_io(partial(runner, build.compiled), build.plan)(self.samples(count))
        return compare_runs(self._float_outputs(variant.model, count), outputs, ranked_outputs(variant.model.graph))

    def time(self, programs: Mapping[str, Build | CompileResult], baseline: str) -> MeasuredLatency | str:
        """The latency of programs by name, alternately, in one process; or why it cannot be measured.

        A program without a plan of ours has float inputs.
        """
        if self.backend.timer is None:
            return "latency cannot be measured on this target"
        return self.backend.timer.time({name: self._timed(program) for name, program in programs.items()}, baseline)

    def _timed(self, program: Build | CompileResult) -> TimedProgram:
        (sample,) = self.samples(1)
        if isinstance(program, CompileResult):
            return TimedProgram(program, sample)
        return TimedProgram(program.compiled, quantized_sample(sample, program.plan))

    def ship(self, build: Build, run_folder: Path) -> Build:
        """Move a build's files into a run directory; nothing is compiled again."""
        for name in (COMPILED, *(path.name for path in build.folder.iterdir())):
            old = run_folder / name
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
        for path in build.folder.iterdir():
            path.rename(run_folder / path.name)
        compiled = with_paths_moved(build.compiled, CompileResult, build.folder, run_folder)
        if self.available and not compiled.error:
            compiled = self.backend.package(compiled, run_folder / COMPILED)
        return replace(build, compiled=compiled, folder=run_folder)

    @contextmanager
    def _emitted(self, variant: Variant) -> Iterator[Emitted]:
        """A variant's plan, its files in a scratch folder that is deleted afterwards, and the hash of their content."""
        plan = self.plan(variant)
        self._folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="emit-", dir=self._folder))
        try:
            artifacts = self.backend.emit(variant.model, plan, scratch)
            yield plan, artifacts, file_sha256(*(artifact.path for artifact in artifacts))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _against_float(self, model: ir.Model, run: RunSamples, count: int, view: View | None) -> Agreement:
        samples, exact = self.samples(count), self._float_outputs(model, count)
        if view is not None:
            return compare_runs(map(view, exact), map(view, run(samples)))
        return compare_runs(exact, run(samples), ranked_outputs(model.graph))

    def _float_outputs(self, model: ir.Model, count: int) -> list[Sample]:
        """The outputs of the float graph for the first samples; cached by the model's id.

        The cache also holds the model, so that its id is not reused.
        """
        cached = self._float.get(id(model))
        samples = self.samples(count)
        if cached is None or len(cached[1]) < len(samples):
            cached = (model, list(SessionRun(model, Mode.FLOAT, self._scratch())(samples)))
            self._float[id(model)] = cached
        return cached[1][: len(samples)]

    def _scratch(self) -> Path:
        """A folder for files that a session reads once."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder


def _model(artifacts: tuple[Artifact, ...]) -> Path:
    return next(artifact.path for artifact in artifacts if artifact.name == MODEL)
