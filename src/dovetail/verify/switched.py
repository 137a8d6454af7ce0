"""A simulation whose edges can be switched: the noise of many variants at the outputs, from one session."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from dovetail.backend import Sample
from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.session import Mode
from dovetail.qdq.boundary import real_stream
from dovetail.qdq.simulation import load_simulation
from dovetail.qdq.switch import switched, with_switches
from dovetail.storage import Plan
from dovetail.verify.compare import compare_runs
from dovetail.verify.run import SessionRun
from dovetail.verify.verdicts import bounded_db


class SwitchedSimulation:
    """The model's outputs against float, with any set of the edges, by number, switched."""

    def __init__(
        self,
        emitted: Path,
        plan: Plan,
        others: Mapping[Edge, QParams],
        samples: Sequence[Sample],
        exact: Sequence[Sample],
        ranked: Mapping[str, int],
        workdir: Path,
    ) -> None:
        simulation = with_switches(load_simulation(emitted), others)
        self._run = real_stream(SessionRun(simulation, Mode.EXACT, workdir), plan)
        self._samples, self._float, self._ranked = samples, exact, ranked
        self._count = len(others)
        self._known: dict[tuple[frozenset[int], int], dict[str, float]] = {}

    def outputs(self, on: Collection[int], samples: int | None = None) -> dict[str, float]:
        """SQNR per float output, in dB, with these edges switched, on the first samples or all."""
        used = self._samples[:samples]
        key = (frozenset(on), len(used))
        if key not in self._known:
            runs = self._run(switched(sample, self._count, on) for sample in used)
            found = compare_runs(self._float[: len(used)], runs, self._ranked).sqnr_db()
            self._known[key] = {name: bounded_db(value) for name, value in found.items() if not math.isnan(value)}
        return self._known[key]

    def added_noise(self, on: Collection[int], samples: int | None = None) -> float:
        """The noise that switching adds at the worst output, in units of what it has without."""
        usual = self.outputs((), samples)
        ratios = [
            10 ** ((usual[name] - db) / 10) - 1 for name, db in self.outputs(on, samples).items() if name in usual
        ]
        return max(ratios, default=0.0)

    def worst_db(self, on: Collection[int], samples: int | None = None) -> float | None:
        """The SQNR of the worst output."""
        return min(self.outputs(on, samples).values(), default=None)
