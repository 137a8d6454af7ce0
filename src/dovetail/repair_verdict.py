"""Comparing a repaired model with the model as given: for the verdict ``repaired``, and for trials before the build."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import MODEL, Sample
from dovetail.calibrate.data import Data
from dovetail.encoding import QParams
from dovetail.errors import BackendError, InputError
from dovetail.finding import Status, Verdict
from dovetail.job import Job
from dovetail.model.class_scores import class_outputs
from dovetail.model.read import read
from dovetail.model.session import Mode
from dovetail.passes.as_float32 import as_float32
from dovetail.plan.rows import PlanRow, plan_rows
from dovetail.qdq.change_types import Types, change_types
from dovetail.qdq.quantized_io import RunSamples, with_float_io
from dovetail.qdq.simulation import load_simulation
from dovetail.report.assemble import TAIL, FitRecord
from dovetail.storage import Plan
from dovetail.verify.repaired import (
    Margin,
    RepairReferences,
    TypesOnly,
    judge_on_target,
    judge_repair,
    not_checked,
    with_confidence,
)
from dovetail.verify.run import SessionRun, followed

# How many samples are compared: on 16 the figures of two equally good models differ by 1 dB or more, and where outputs
# have a top class, fewer than 100 do not show a difference of 1 %.
COMPARED_SAMPLES, CLASSIFIED_SAMPLES = 64, 256
_NOT_RUN = "a model could not be run: {}"


@dataclass(eq=False, slots=True)
class RepairComparison:
    """The file as given, its float model and plan, the float model of the caller; ``folder`` is for temporary files."""

    path: Path
    model: ir.Model
    plan: Plan
    reference: ir.Model | None
    job: Job
    folder: Path
    _of_trials: RepairReferences | None = field(default=None, init=False)

    @property
    def checkable(self) -> bool:
        """Whether there are samples that tell how models differ."""
        return self.job.request.from_data and not self.job.data.random

    def judge_variant(
        self, model: ir.Model, plan: Plan, run: RunSamples, samples: list[Sample], margin: Margin
    ) -> Verdict:
        """The verdict on a variant of a trial, simulated or on the target.

        ``samples``: calibration samples, of the first call or the first of those.
        """
        limits = self.job.options.thresholds
        strict = replace(limits, repaired_drop_db=margin.share * limits.repaired_drop_db)
        types_only = self._types_only(tuple(plan_rows(plan, model)), plan)
        try:
            if self._of_trials is None:
                self._of_trials = self._references(self.job.data, samples)
            verdict = judge_repair(self._of_trials.first(len(samples)), run, types_only, strict)
            return with_confidence(verdict, len(samples), limits.repaired_drop_db, margin.errors)
        except BackendError as error:
            return not_checked(_NOT_RUN.format(error), strict)

    def judge_build(self, record: FitRecord | None, rows: Sequence[PlanRow], run: Path) -> Verdict:
        """The verdict on the build that ships; a model that cannot be run is not checked."""
        thresholds = self.job.options.thresholds
        if not self.checkable:
            reason = "there is no calibration data, and random inputs do not tell how models differ: pass --calib DATA"
            return not_checked(reason, thresholds)
        if record is None:
            return not_checked("nothing was emitted, so there is nothing to compare", thresholds)
        data = self.job.data if self.job.evaluation is None else self.job.evaluation.data
        tail = ir.load(run / TAIL) if (run / TAIL).exists() else None
        emitted = next(artifact.path for artifact in record.compiled.artifacts if artifact.name == MODEL)
        types_only = self._types_only(rows, record.plan)
        runner = self.job.target.backend.runner
        try:
            references = self._references(data, self._samples(data))
            simulation = SessionRun(load_simulation(emitted), Mode.EXACT, self.folder)
            repaired = followed(with_float_io(simulation, record.plan), tail, self.folder)
            verdict = judge_repair(references, repaired, types_only, thresholds)
            if verdict.status is not Status.PASS or runner.run is None or _not_compiled(record):
                return verdict
            on_target = followed(with_float_io(partial(runner.run, record.compiled), record.plan), tail, self.folder)
            return judge_on_target(verdict, references, on_target, runner, types_only, thresholds)
        except BackendError as error:
            return not_checked(_NOT_RUN.format(error), thresholds)

    def _references(self, data: Data, samples: list[Sample]) -> RepairReferences:
        """Run the model as given and the caller's float model on these samples of the data."""
        given, in_half = self._as_given()
        as_given = with_float_io(SessionRun(given if in_half else self.path, Mode.EXACT, self.folder), self.plan)
        reference = None
        if self.reference is not None:
            reference = list(SessionRun(self.reference, Mode.FLOAT, self.folder)(samples))
        kind = "calibration samples" if data is self.job.data else "held-out samples"
        return RepairReferences(
            self.model.graph, samples, f"{kind} of {data.source}", list(as_given(samples)), reference
        )

    def _samples(self, data: Data) -> list[Sample]:
        """The first samples of the data, without the labels that a metric needs."""
        count = CLASSIFIED_SAMPLES if class_outputs(self.model.graph) else COMPARED_SAMPLES
        names = {str(value.name) for value in self.model.graph.inputs}
        samples = itertools.islice(data.samples(), count)
        return [{name: array for name, array in sample.items() if name in names} for sample in samples]

    def _as_given(self) -> tuple[ir.Model, bool]:
        """The model as given, and whether it was converted from float16."""
        given = read(self.path, self.job.options.shape)
        return given, bool(as_float32(given).changed)

    def _types_only(self, rows: Sequence[PlanRow], plan: Plan) -> TypesOnly:
        """The model as given with the types of a plan, to be run if the verdict needs it; or why there is none."""

        def run() -> RunSamples | str:
            if self.plan.quantized_io:
                return "its inputs or outputs are quantized"
            try:
                changed = change_types(self._as_given()[0], self._types(rows, plan))
                return SessionRun(changed, Mode.EXACT, self.folder)
            except (InputError, BackendError) as error:
                return str(error)

        return run

    def _types(self, rows: Sequence[PlanRow], plan: Plan) -> Types:
        """The types of a plan, by the names of the model as given."""
        initializers = self.model.graph.initializers
        tensors: dict[str, QParams] = {}
        constants: dict[str, QParams] = {}
        for row in rows:  # tensors first: an edge counts only where the tensor itself is float
            storage = (plan.tensors[row.tensor] if row.edge is None else plan.edges[row.edge]).storage
            if isinstance(storage, QParams):
                if row.original_name in initializers:
                    constants.setdefault(row.original_name, storage)
                elif row.original_exact:
                    tensors.setdefault(row.original_name, storage)
        return Types(tensors, constants)


def _not_compiled(record: FitRecord) -> bool:
    return record.verification.verdicts["compiled"].status is not Status.PASS
