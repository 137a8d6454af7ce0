"""The workbench: the only code that plans, simulates, builds, runs and times variants of a model for a target.

Results are remembered by the content of what was emitted, so nothing is simulated or compiled twice. Every build has a
folder of its own, laid out as a run directory is: the emitted files, and ``compile/`` with what the compiler made.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

import onnx_ir as ir

from dovetail.backend import MODEL, Artifact, Backend, CompileResult, MeasuredLatency, Sample
from dovetail.document import moved
from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.files import file_sha256
from dovetail.model.ranked import ranked_outputs
from dovetail.model.session import Mode
from dovetail.op_support import OpTable
from dovetail.plan.make import make_plan
from dovetail.qdq.boundary import Stream, real_stream
from dovetail.qdq.simulation import load_simulation
from dovetail.storage import Plan
from dovetail.trials.variant import Variant
from dovetail.verify.compare import Agreement, compare_runs
from dovetail.verify.run import SessionRun
from dovetail.verify.switched import SwitchedSimulation
from dovetail.verify.verdicts import MAX_SQNR_DB, bounded_db

COMPILED = "compile"

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Score:
    """The caller's metric: the held-out samples, and its figures of what a variant gives for them."""

    samples: Callable[[], Iterable[Sample]]
    figures: Callable[[Iterator[Sample]], Mapping[str, float]]


@dataclass(frozen=True, slots=True, eq=False)
class Build:
    """A variant as it was compiled: its plan, what the compiler made of it, and the folder that holds its files."""

    plan: Plan
    compiled: CompileResult
    folder: Path


class Workbench:
    """Tries variants of one model on one target.

    ``available``: whether the target's compiler can be reached. ``source``: gives the calibration samples, from the
    first one on. ``wishes``: what the caller asks of knobs, by the knob's name.
    """

    def __init__(
        self,
        table: OpTable,
        backend: Backend,
        source: Callable[[], Iterable[Sample]],
        folder: Path,
        *,
        available: bool = True,
        wishes: Mapping[str, str] | None = None,
        score: Score | None = None,
        progress: Progress = lambda done, total: None,
    ) -> None:
        self.table, self.backend, self.available = table, backend, available
        self.wishes, self.score, self.progress = dict(wishes or {}), score, progress
        self._source, self._folder = source, folder
        self._samples: list[Sample] = []
        self._float: dict[int, tuple[ir.Model, list[Sample]]] = {}
        self._agreements: dict[tuple[str, int], Agreement] = {}
        self._builds: dict[str, Future[tuple[CompileResult, Path]]] = {}
        self._lock = Lock()

    def samples(self, count: int) -> list[Sample]:
        """The first calibration samples, as many as there are up to ``count``."""
        if len(self._samples) < count:
            self._samples = list(itertools.islice(self._source(), count))
        return self._samples[:count]

    def plan(self, variant: Variant) -> Plan:
        """How a variant is stored."""
        if variant.plan is not None:
            return variant.plan
        return make_plan(variant.model, self.table, variant.stats, variant.request, variant.imported)

    def compare(self, variant: Variant, count: int) -> Agreement:
        """The simulation of a variant against float, on the first samples."""
        with self._emitted(variant) as (plan, artifacts, digest):
            if (digest, count) not in self._agreements:
                simulation = load_simulation(_model(artifacts))
                stream = real_stream(SessionRun(simulation, Mode.EXACT, self._scratch()), plan)
                self._agreements[digest, count] = self._against_float(variant.model, stream, count)
        return self._agreements[digest, count]

    def worst_db(self, variant: Variant, count: int) -> float:
        """The SQNR of the worst output in simulation against float."""
        return worst_db(self.compare(variant, count))

    def switched(self, variant: Variant, others: Mapping[Edge, QParams], count: int) -> SwitchedSimulation:
        """A simulation in which these edges can be switched to other quantization parameters, compared with float."""
        with self._emitted(variant) as (plan, artifacts, _):
            samples = self.samples(count)
            exact = self._float_outputs(variant.model, count)
            ranked = ranked_outputs(variant.model.graph)
            return SwitchedSimulation(_model(artifacts), plan, others, samples, exact, ranked, self._scratch())

    def build(self, variant: Variant) -> Build:
        """What the target's compiler makes of a variant; the same bytes are compiled once."""
        with self._emitted(variant) as (plan, artifacts, digest):
            with self._lock:  # of several threads with the same bytes, one compiles them
                mine = digest not in self._builds
                known = self._builds.setdefault(digest, Future())
            if mine:
                self._compile_into(known, artifacts, self._folder / digest[:16])
        compiled, folder = known.result()
        return Build(plan, compiled, folder)

    def _compile_into(
        self, known: Future[tuple[CompileResult, Path]], artifacts: tuple[Artifact, ...], folder: Path
    ) -> None:
        try:
            shutil.rmtree(folder, ignore_errors=True)
            scratch = artifacts[0].path.parent
            scratch.rename(folder)
            files = moved(artifacts, tuple[Artifact, ...], scratch, folder)
            known.set_result((self.compile(files, folder / COMPILED), folder))
        except BaseException as error:
            known.set_exception(error)
            raise

    def build_each(self, variants: Sequence[Variant]) -> list[Build]:
        """The same for several, as many at once as there are cores; vendor tools run in child processes."""
        contexts = [copy_context() for _ in variants]  # what a run has set, such as whether it uses the compile cache
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda context, variant: context.run(self.build, variant), contexts, variants))

    def compile(self, artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        """What the target's compiler makes of files; without a compiler, only these."""
        folder.mkdir(parents=True, exist_ok=True)
        return self.backend.compile(artifacts, folder) if self.available else CompileResult(artifacts)

    def run(self, build: Build, variant: Variant, count: int) -> tuple[Agreement, dict[str, float]]:
        """A build on the target against float, and the caller's metric on held-out samples, in one go: starting a
        target can cost seconds."""
        runner = self.backend.runner.run
        if runner is None:
            raise ValueError(self.backend.runner.why_not)
        samples = self.samples(count)
        held_out: Iterable[Sample] = () if self.score is None else self.score.samples()
        outputs = real_stream(partial(runner, build.compiled), build.plan)(itertools.chain(samples, held_out))
        exact = self._float_outputs(variant.model, count)
        agreement = compare_runs(exact, itertools.islice(outputs, len(exact)), ranked_outputs(variant.model.graph))
        return agreement, {} if self.score is None else dict(self.score.figures(outputs))

    def time(self, programs: Mapping[str, CompileResult], baseline: str) -> MeasuredLatency | str:
        """The latency of programs by name, by turns in one run; or why there is none."""
        if self.backend.timer is None:
            return "this target is not timed here"
        return self.backend.timer.time(programs, baseline, self.samples(1)[0])

    def ship(self, build: Build, place: Path) -> Build:
        """Take a build over into a run directory: its files are moved there, nothing is built again."""
        for name in (COMPILED, *(path.name for path in build.folder.iterdir())):
            old = place / name
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
        for path in build.folder.iterdir():
            path.rename(place / path.name)
        compiled = moved(build.compiled, CompileResult, build.folder, place)
        if self.available and not compiled.error:
            compiled = self.backend.package(compiled, place / COMPILED)
        return Build(build.plan, compiled, place)

    @contextmanager
    def _emitted(self, variant: Variant) -> Iterator[tuple[Plan, tuple[Artifact, ...], str]]:
        """A variant's plan, its files in a scratch folder that goes afterwards, and the hash of their content."""
        plan = self.plan(variant)
        self._folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="emit-", dir=self._folder))
        try:
            artifacts = self.backend.emit(variant.model, plan, scratch)
            yield plan, artifacts, file_sha256(*(artifact.path for artifact in artifacts))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _against_float(self, model: ir.Model, stream: Stream, count: int) -> Agreement:
        samples, exact = self.samples(count), self._float_outputs(model, count)
        return compare_runs(exact, stream(samples), ranked_outputs(model.graph))

    def _float_outputs(self, model: ir.Model, count: int) -> list[Sample]:
        """What the float graph gives for the first samples; kept, with the model so that its identity stays its own."""
        known = self._float.get(id(model))
        samples = self.samples(count)
        if known is None or len(known[1]) < len(samples):
            known = (model, list(SessionRun(model, Mode.FLOAT, self._scratch())(samples)))
            self._float[id(model)] = known
        return known[1][: len(samples)]

    def _scratch(self) -> Path:
        """A folder for files that a session reads once."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder


def worst_db(agreement: Agreement) -> float:
    """The SQNR of the worst output; NaN is worse than anything."""
    figures = (one.sqnr_db for one in agreement.outputs.values())
    return min((-MAX_SQNR_DB if math.isnan(db) else bounded_db(db) for db in figures), default=0.0)


def _model(artifacts: tuple[Artifact, ...]) -> Path:
    return next(artifact.path for artifact in artifacts if artifact.name == MODEL)
