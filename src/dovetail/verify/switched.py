"""A simulation with switchable edges: the output noise of many variants from one session."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from dovetail.backend import Sample
from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.session import Mode
from dovetail.qdq.quantized_io import with_float_io
from dovetail.qdq.simulation import load_simulation
from dovetail.qdq.switch import switched, with_switches
from dovetail.storage import Plan
from dovetail.verify.compare import compare_runs
from dovetail.verify.run import SessionRun
from dovetail.verify.verdicts import bounded_db


class SwitchedSimulation:
    """Compares the outputs with float while any set of edges, by number, uses its other quantization parameters."""

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
        self._run = with_float_io(SessionRun(simulation, Mode.EXACT, workdir), plan)
        self._samples, self._float, self._ranked = samples, exact, ranked
        self._count = len(others)
        self._cache: dict[tuple[frozenset[int], int], dict[str, float]] = {}

    def outputs(self, on: Collection[int], samples: int | None = None) -> dict[str, float]:
        """Return the SQNR per float output, in dB, with these edges switched, on the first samples or all."""
        used = self._samples[:samples]
        key = (frozenset(on), len(used))
        if key not in self._cache:
            runs = self._run(switched(sample, self._count, on) for sample in used)
            sqnr_db = compare_runs(self._float[: len(used)], runs, self._ranked).sqnr_db()
            self._cache[key] = {name: bounded_db(value) for name, value in sqnr_db.items() if not math.isnan(value)}
        return self._cache[key]

    def added_noise(self, on: Collection[int], samples: int | None = None) -> float:
        """Return the noise that switching adds at the worst output, relative to its noise without switching."""
        before = self.outputs((), samples)
        ratios = [
            10 ** ((before[name] - db) / 10) - 1 for name, db in self.outputs(on, samples).items() if name in before
        ]
        return max(ratios, default=0.0)

    def worst_db(self, on: Collection[int], samples: int | None = None) -> float | None:
        """Return the SQNR of the worst output."""
        return min(self.outputs(on, samples).values(), default=None)
