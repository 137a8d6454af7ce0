"""How wide the second operand of a product of two activations is stored: chosen per product, by what it costs.

Where a target takes such an operand in 16 bits or in 8, wide is exact and slow, narrow is fast and adds noise. The
noise is measured at the model's outputs with each product narrow on its own, the time is the vendor's estimate;
products turn narrow, least noise per time saved first, as many as together cost the outputs no more than ``LOSS_DB``.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Estimate, Sample
from dovetail.edge import Edge
from dovetail.encoding import DType, QParams
from dovetail.model.edit import shape_of
from dovetail.model.origin import nodes_of
from dovetail.model.ranked import ranked_outputs
from dovetail.model.session import Mode
from dovetail.model.write import write
from dovetail.plan.make import make_plan
from dovetail.plan.request import Request
from dovetail.qdq.boundary import real_stream
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.simulation import load_simulation
from dovetail.qdq.switch import switched, with_switches
from dovetail.stats import Stats
from dovetail.storage import Choice, Plan
from dovetail.target import Target
from dovetail.verify.compare import compare_runs
from dovetail.verify.run import SessionRun
from dovetail.verify.verdicts import bounded_db

# What all narrow operands together may cost the worst output.
LOSS_DB = 1.0
# Samples for the order of the products, and for the noise of a set of them: a few say which is worse, not how bad.
RANKING_SAMPLES, SAMPLES = 2, 16

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Operand:
    """One product: the model's worst output with this operand wide and with it alone narrow, and what narrow saves."""

    node: str
    edge: Edge
    wide: DType
    narrow: DType
    chosen: DType
    wide_sqnr_db: float | None
    narrow_sqnr_db: float | None
    saved_us: float | None = None


@dataclass(frozen=True, slots=True)
class OperandSearch:
    """Every product, what was chosen, and the vendor's estimates that it was chosen by (empty where there are none).

    The figures of single products are from fewer samples than those of all wide and of what was chosen.
    """

    operands: tuple[Operand, ...]
    estimates_us: Mapping[str, Estimate]
    samples: int
    wide_sqnr_db: float | None
    chosen_sqnr_db: float | None


def choose_operands(
    model: ir.Model,
    target: Target,
    stats: Stats,
    request: Request,
    samples: Sequence[Sample],
    workdir: Path,
    progress: Progress,
) -> tuple[Plan, OperandSearch | None]:
    """The plan with every such operand as wide as it pays; None for the search where there is nothing to choose."""
    wide = make_plan(model, target, stats, request)
    everything = frozenset(node.name or "" for node in model.graph)
    narrow = make_plan(model, target, stats, replace(request, narrow=everything))
    edges = {e: (c, narrow.edges[e]) for e, c in wide.edges.items() if e in narrow.edges and narrow.edges[e] != c}
    if not edges or not samples:
        return wide, None
    noise = _Noise(model, wide, {edge: _params(pair[1]) for edge, pair in edges.items()}, samples, workdir)
    alone = []
    for number in range(len(edges)):
        progress(number, len(edges))
        alone.append(noise.outputs([number], RANKING_SAMPLES))
    base = noise.outputs([], RANKING_SAMPLES)
    groups = _alike(model, list(edges))
    estimates = _estimates(model, target, wide, edges, groups) if target.estimates else {}
    saved = _saved(groups, estimates, len(edges))
    order = _order([_added(base, outputs) for outputs in alone], saved or _work(model, list(edges)))
    chosen = _accept(noise, frozenset(), order)
    rows = []
    stored = dict(wide.edges)
    for number, (edge, (one, other)) in enumerate(edges.items()):
        row = Operand(
            node=_original(model, edge),
            edge=edge,
            wide=_params(one).dtype,
            narrow=_params(other).dtype,
            chosen=_params(other if number in chosen else one).dtype,
            wide_sqnr_db=_worst(base),
            narrow_sqnr_db=_worst(alone[number]),
            saved_us=saved[number] if saved else None,
        )
        rows.append(row)
        stored[edge] = Choice(_params(other if number in chosen else one), _reason(row))
    search = OperandSearch(
        tuple(rows), estimates, len(samples), _worst(noise.outputs([])), _worst(noise.outputs(chosen))
    )
    return replace(wide, edges=stored), search


def _params(choice: Choice) -> QParams:
    if not isinstance(choice.storage, QParams):
        raise TypeError("an operand with two widths is stored in integers in both")
    return choice.storage


def _reason(row: Operand) -> str:
    loss = (row.wide_sqnr_db or 0.0) - (row.narrow_sqnr_db or 0.0)
    time = "" if row.saved_us is None else f", {row.saved_us:.1f} us saved by the vendor's estimate"
    return f"second operand as {row.chosen}: {row.narrow} alone costs the outputs {loss:.2f} dB{time}"


class _Noise:
    """The model's outputs against float, with any set of the edges narrow."""

    def __init__(
        self, model: ir.Model, wide: Plan, narrow: Mapping[Edge, QParams], samples: Sequence[Sample], workdir: Path
    ) -> None:
        written = write(emit_qdq(model, wide), workdir / "operands.onnx")
        try:
            simulation = with_switches(load_simulation(written[0]), narrow)
            self._run = real_stream(SessionRun(simulation, Mode.EXACT, workdir), wide)
        finally:
            for file in written:
                file.unlink()
        self._samples = samples
        self._float = list(SessionRun(model, Mode.FLOAT, workdir)(samples))
        self._ranked = ranked_outputs(model.graph)
        self._count = len(narrow)
        self._known: dict[tuple[frozenset[int], int], dict[str, float]] = {}

    def outputs(self, on: Collection[int], samples: int | None = None) -> dict[str, float]:
        """SQNR per float output, in dB, with these edges narrow, on the first samples or all."""
        used = self._samples[:samples]
        key = (frozenset(on), len(used))
        if key in self._known:
            return self._known[key]
        runs = self._run(switched(sample, self._count, on) for sample in used)
        found = compare_runs(self._float[: len(used)], runs, self._ranked).sqnr_db()
        self._known[key] = {name: bounded_db(value) for name, value in found.items() if not math.isnan(value)}
        return self._known[key]


def _added(wide: Mapping[str, float], other: Mapping[str, float]) -> float:
    """The noise that came on top of what the wide form has, in units of that, at the worst output."""
    return max((10 ** ((wide[name] - value) / 10) - 1 for name, value in other.items() if name in wide), default=0.0)


def _worst(outputs: Mapping[str, float]) -> float | None:
    return min(outputs.values(), default=None)


def _order(added: Sequence[float], gain: Sequence[float]) -> list[int]:
    """The products that gain anything, least noise per gain first."""
    useful = [number for number, value in enumerate(gain) if value > 0]
    return sorted(useful, key=lambda number: (max(added[number], 0.0) / gain[number], -gain[number]))


def _accept(noise: _Noise, chosen: frozenset[int], order: Sequence[int]) -> frozenset[int]:
    """Those chosen, and as many more as cost the outputs no more than is allowed; halves that cost more are split."""
    if not order:
        return chosen
    together = chosen.union(order)
    if _added(noise.outputs([]), noise.outputs(together)) <= 10 ** (LOSS_DB / 10) - 1:
        return together
    if len(order) == 1:
        return chosen
    half = len(order) // 2
    return _accept(noise, _accept(noise, chosen, order[:half]), order[half:])


def _alike(model: ir.Model, edges: Sequence[Edge]) -> dict[str, list[int]]:
    """The products in groups of the same shapes: repeated blocks cost the same."""
    nodes = {node.name: node for node in model.graph}
    groups: dict[str, list[int]] = {}
    for number, edge in enumerate(edges):
        shapes = [shape_of(value) for value in nodes[edge.node].inputs]
        groups.setdefault(" x ".join(str(list(shape or ())) for shape in shapes), []).append(number)
    return groups


def _estimates(
    model: ir.Model,
    target: Target,
    wide: Plan,
    edges: Mapping[Edge, tuple[Choice, Choice]],
    groups: Mapping[str, Sequence[int]],
) -> dict[str, Estimate]:
    """The vendor's estimates: all wide, then each group narrow; those that the compiler gives.

    A compiler that does not come to its end is not asked again: it would take the whole time limit every time.
    """
    pairs = list(edges.items())
    variants = {"wide": wide}
    for name, numbers in groups.items():
        changed = {pairs[number][0]: pairs[number][1][1] for number in numbers}
        variants[f"narrow {name}"] = replace(wide, edges={**wide.edges, **changed})
    found = {}
    for name, plan in variants.items():
        with tempfile.TemporaryDirectory(prefix="dovetail-operands-") as folder:
            compiled = target.try_out(target.emit(model, plan, Path(folder)), Path(folder))
        if not compiled.finished:
            break
        if compiled.estimate is not None:
            found[name] = compiled.estimate
    return found


def _saved(groups: Mapping[str, Sequence[int]], estimates: Mapping[str, Estimate], count: int) -> list[float]:
    """What each product saves in its narrow form, in us; empty where the estimates cannot be compared."""
    wide = estimates.get("wide")
    saved = [0.0] * count
    for name, numbers in groups.items():
        narrow = estimates.get(f"narrow {name}")
        if wide is None or narrow is None or narrow.ops_without_cost != wide.ops_without_cost:
            return []
        for number in numbers:
            saved[number] = (wide.mid_us - narrow.mid_us) / len(numbers)
    return saved


def _work(model: ir.Model, edges: Sequence[Edge]) -> list[float]:
    """Multiplications per product: what stands for time where there is no estimate."""
    nodes = {node.name: node for node in model.graph}
    found = [nodes[edge.node] for edge in edges]
    return [float(math.prod(shape_of(n.outputs[0]) or ()) * (shape_of(n.inputs[0]) or (1,))[-1]) for n in found]


def _original(model: ir.Model, edge: Edge) -> str:
    node = next(node for node in model.graph if node.name == edge.node)
    return ", ".join(nodes_of(node)) or edge.node
