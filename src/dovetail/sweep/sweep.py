"""Run a sweep: fit the graphs of a seed, shrink those that fail, and report; it continues where it stopped."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from dovetail.document import encode
from dovetail.errors import InputError
from dovetail.job import first_precision
from dovetail.model.write import write_whole
from dovetail.run_lock import run_lock
from dovetail.sweep.blocks import BLOCKS
from dovetail.sweep.case import Case, make_case
from dovetail.sweep.fit_graph import FitRequest
from dovetail.sweep.group import FailureGroup, grouped
from dovetail.sweep.outcome import Failure, Outcome
from dovetail.sweep.pattern import facts_of, pattern_of
from dovetail.sweep.records import GraphRow, PatternRow, SweepFolder, SweepSettings
from dovetail.sweep.report import SweepReport, as_markdown, make_report
from dovetail.sweep.shrink import Fit, ShrunkGraph, save_graph, shrink
from dovetail.targets import open_target

Progress = Callable[[str], None]
_REPORT = "report"


def generator_digest(seed: int) -> str:
    """A digest of one graph of every kind."""
    state = hashlib.sha256()
    for index in range(len(BLOCKS)):
        state.update(make_case(seed, index).model.SerializeToString(deterministic=True))
    return state.hexdigest()[:16]


def require_usable(settings: SweepSettings) -> None:
    """Refuse what every graph would be refused for: a precision that the target lacks, a compiler that is missing."""
    target = open_target(settings.target, settings.option)
    first_precision(settings.precision, target.table)
    probe = target.backend.probe()
    if not probe.available:
        raise InputError(f"{settings.target} cannot be swept: {probe.missing}")


class Sweep:
    """One sweep in a folder; ``fit`` fits a graph, here or in another process."""

    def __init__(self, settings: SweepSettings, folder: Path, fit: Fit, progress: Progress = lambda line: None) -> None:
        self._settings = replace(settings, generator=generator_digest(settings.seed))
        self._fit, self._progress = fit, progress
        self._folder = SweepFolder(folder, self._settings)
        self._graphs: dict[int, GraphRow] = {}
        self._patterns: list[PatternRow] = []

    def run(self, count: int, is_over: Callable[[], bool] = lambda: False, *, shrinks: bool = True) -> SweepReport:
        """Fit and shrink the first ``count`` graphs of the seed, those of earlier runs included, and write the report.

        ``is_over``: asked before every graph whether to stop. An interruption loses only the graph that was being
        fitted; the report is written after every failure, and in any case at the end.
        """
        if self._folder.settings.generator != self._settings.generator:
            raise InputError(
                f"{self._folder.path} has graphs of another version of the generator, which makes other graphs from "
                "the same seed; choose another folder"
            )
        with run_lock(self._folder.path.resolve()):
            self._graphs, self._patterns = self._folder.graphs(), self._folder.patterns()
            try:
                for index in range(count):
                    if is_over():
                        break
                    if index not in self._graphs:
                        self._fit_graph(index)
                    if shrinks:
                        self._shrink_failures(index)
            finally:
                report = self._write_report()
        return report

    def _write_report(self) -> SweepReport:
        report = make_report(self._settings, self._graphs, self._patterns)
        write_whole(self._folder.path / f"{_REPORT}.json", encode(report, indent=1))
        write_whole(self._folder.path / f"{_REPORT}.md", as_markdown(report).encode())
        return report

    def outcome_of(self, index: int) -> Outcome:
        """Fit one graph again, without recording it."""
        case = make_case(self._settings.seed, index)
        with tempfile.TemporaryDirectory(prefix="dovetail-sweep-") as name:
            return self._fit(self._request(*_written(case, Path(name) / "graph")))

    def recheck(self) -> Iterator[tuple[FailureGroup, Outcome]]:
        """Fit one pattern of every group again, without recording it: which of them still fail."""
        for group in grouped(self._folder.patterns()):
            model = self._folder.path / group.smallest.file
            request = self._request(model, model.with_suffix(".npz"))
            yield group, self._fit(replace(request, build_only=request.build_only or group.smallest.is_shrunk))

    def _fit_graph(self, index: int) -> None:
        case = make_case(self._settings.seed, index)
        outcome = self.outcome_of(index)
        row = GraphRow(index, case.kinds, len(case.model.graph.node), outcome)
        if outcome.failures:
            _written(case, self._folder.path / "graphs" / f"{index:05}")
        self._folder.add_graph(row)
        self._graphs[index] = row
        causes = "; ".join(f"{failure.kind}: {failure.cause}" for failure in outcome.failures)
        self._progress(f"{index} {' '.join(case.kinds)}: {causes or 'passed'}")

    def _shrink_failures(self, index: int) -> None:
        done = {row.failure.kind for row in self._patterns if row.index == index}
        for failure in self._graphs[index].outcome.failures:
            if failure.kind not in done:
                self._shrink(index, failure)

    def _shrink(self, index: int, failure: Failure) -> None:
        case = make_case(self._settings.seed, index)
        how = self._request(Path(), Path())
        shrunk = shrink(case, failure, how, self._fit, self._known(failure))
        whole = ShrunkGraph(ir.from_proto(case.model), case.samples, failure, calls=1, is_minimal=False)
        part = shrunk or whole
        name = f"patterns/{failure.kind.replace(' ', '_')}_{index:05}"
        save_graph(part.model, part.samples, self._folder.path / name)
        row = PatternRow(
            index,
            part.failure,
            pattern_of(part.model),
            facts_of(part.model),
            f"{name}.onnx",
            part.calls,
            part.is_minimal,
            is_shrunk=shrunk is not None,
        )
        self._folder.add_pattern(row)
        self._patterns.append(row)
        self._write_report()
        self._progress(f"{index} {failure.kind} at {row.pattern} after {row.calls} builds: {row.failure.cause}")

    def _known(self, failure: Failure) -> list[ir.Model]:
        """The smallest patterns so far that fail in this way, the most frequent first."""
        rows = [row for row in self._patterns if row.is_minimal and row.failure.is_like(failure)]
        texts = [row.pattern for row in rows]
        first = {row.pattern: row for row in reversed(rows)}
        names = sorted(first, key=lambda text: (-texts.count(text), text))
        return [ir.load(self._folder.path / first[name].file) for name in names]

    def _request(self, model: Path, samples: Path) -> FitRequest:
        settings = self._settings
        return FitRequest(model, samples, settings.target, settings.precision, settings.option, settings.build_only)


def _written(case: Case, path: Path) -> tuple[Path, Path]:
    return save_graph(ir.from_proto(case.model), case.samples, path)
