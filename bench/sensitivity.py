"""Sensitivity of all operators of a ViT-tiny with random weights: exact and to first order, against rebuilding each.

    python -m bench.sensitivity                       # 2 samples, w8a8 on ort-cpu
    python -m bench.sensitivity --rebuild 40          # rebuild only 40 of them, and scale the time
    python -m bench.sensitivity --model vit_fashion --samples 16 --rebuild 20       # a shipped model

Prints CPU seconds on one thread, everything from the plan on: inserting Q/DQ, opening sessions, running. *rebuild*
emits, loads and runs the QDQ graph of every subject anew: an operator, its weights, or its activations. *exact* is what
``dovetail sensitivity`` does; its figures must be those of *rebuild*. *first order* is what ``--first-order`` does for
operators: Spearman's rank correlation with *exact* over all subjects, and how many of the 20 operators that cost most
are among the 30 that it then measures.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx_ir as ir
from scipy.stats import spearmanr
from tests.networks.vit_tiny import pictures, save

from dovetail.backend import Sample
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.encoding import Array
from dovetail.float_graph import prepared
from dovetail.model.ranked import ranked_outputs
from dovetail.model.read import read
from dovetail.model.session import Mode
from dovetail.plan.constraints import build_problem
from dovetail.plan.elements import Element, elements_of, only
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.qdq.emit import emit_qdq
from dovetail.storage import Plan
from dovetail.targets import open_target
from dovetail.trials.sensitivity.first_order import MEASURED, estimate
from dovetail.trials.sensitivity.measure import Calls, Cost, add_call, cost_of, measure
from dovetail.trials.sensitivity.subjects import Subject, operators
from dovetail.verify.run import SessionRun
from dovetail.verify.segmented import SegmentedSimulation
from dovetail.zoo import load, names

CALIBRATION, TOP = 4, 20
_RANDOM = "vit_tiny"
# Above this, the rounding of float32 itself differs between two sessions.
FLOAT32_DB = 90.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="ort-cpu")
    parser.add_argument("--precision", default="w8a8")
    parser.add_argument("--model", default=_RANDOM, choices=(_RANDOM, *names()), help="default: random weights")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--rebuild", type=int, default=0, help="how many subjects are rebuilt (default all)")
    options = parser.parse_args(arguments)
    target = open_target(options.target)
    with tempfile.TemporaryDirectory(prefix="bench-sensitivity-") as name:
        folder = Path(name)
        path, calibration, samples = _case(options.model, options.samples, folder)
        model = prepared(read(path, {}), target)
        data = open_data(calibration, input_specs(model))
        stats = collect(model, observed(model, target.table), data, workdir=folder, histograms=False)
        plan = make_plan(model, target.table, stats, Request(target.table.precisions[options.precision]))
        elements = elements_of(build_problem(model, target.table), plan)
        subjects = list(operators(elements))
        print(f"{len(elements)} elements, {len(subjects)} subjects, {len(samples)} samples", flush=True)
        exact, exact_s = _timed(lambda: _exact(model, plan, elements, samples, subjects, folder))
        first, first_s = _timed(lambda: _first_order(model, plan, elements, samples, subjects, folder))
        step = max(1, len(subjects) // options.rebuild) if options.rebuild else 1
        chosen = subjects[::step]
        outputs = list(SessionRun(model, Mode.FLOAT, folder)(samples))
        rebuilt, some_s = _timed(
            lambda: [_rebuilt(model, plan, _of(each, elements), samples, outputs, folder) for each in chosen]
        )
        rebuild_s = some_s * len(subjects) / len(chosen)
        pairs = [(a.mean_db, b.mean_db) for a, b in zip(exact[::step], rebuilt, strict=True)]
        difference = max(abs(a - b) for a, b in pairs if min(a, b) < FLOAT32_DB)
    print(f"rebuild     {rebuild_s:7.1f} s  1.00x   ({len(chosen)} of {len(subjects)} run)")
    print(f"exact       {exact_s:7.1f} s  {exact_s / rebuild_s:.3f}x   largest difference {difference:.3f} dB")
    rank = spearmanr([cost.mean_db for cost in exact], [cost.mean_db for cost in first]).statistic
    both = set(_costliest(exact, subjects, TOP)) & set(_costliest(first, subjects, MEASURED))
    print(
        f"first order {first_s:7.1f} s  {first_s / rebuild_s:.3f}x   rank correlation {rank:.3f}, "
        f"{len(both)} of the {TOP} operators that cost most are measured"
    )


def _case(name: str, count: int, folder: Path) -> tuple[Path, dict[str, Array], list[Sample]]:
    """A model file, calibration data with samples along the first axis, and other samples."""
    if name == _RANDOM:
        images = pictures(CALIBRATION + count)
        path, key, calibration, held_out = (
            save(folder, token_scale=0.2),
            "image",
            images[:CALIBRATION],
            images[CALIBRATION:],
        )
    else:
        shipped = load(name)
        path, key = shipped.model_path, shipped.input_name
        calibration, held_out = shipped.calib()[key][: 2 * CALIBRATION], shipped.eval()[key][:count]
    return path, {key: calibration[:, None]}, [{key: image[None]} for image in held_out]


def _exact(
    model: ir.Model,
    plan: Plan,
    elements: Sequence[Element],
    samples: Sequence[Sample],
    subjects: Sequence[Subject],
    folder: Path,
) -> list[Cost]:
    simulation = SegmentedSimulation(model, plan, elements, folder)
    return measure(simulation, _calls(model, samples), subjects)


def _first_order(
    model: ir.Model,
    plan: Plan,
    elements: Sequence[Element],
    samples: Sequence[Sample],
    subjects: Sequence[Subject],
    folder: Path,
) -> list[Cost]:
    """All estimated, and the costliest measured; the command also measures blocks and the whole model."""
    simulation = SegmentedSimulation(model, plan, elements, folder)
    calls = _calls(model, samples)
    costs = estimate(simulation, calls, subjects)
    measure(simulation, calls, [subjects[number] for number in _costliest(costs, subjects, MEASURED)])
    return costs


def _calls(model: ir.Model, samples: Sequence[Sample]) -> Calls:
    return Calls(lambda: samples, len(samples), ranked=ranked_outputs(model.graph))


def _of(subject: Subject, elements: Sequence[Element]) -> list[Element]:
    return [elements[number] for number in subject.elements]


def _rebuilt(
    model: ir.Model,
    plan: Plan,
    elements: Sequence[Element],
    samples: Sequence[Sample],
    exact: Sequence[Sample],
    folder: Path,
) -> Cost:
    run = SessionRun(emit_qdq(model, only(plan, elements)), Mode.EXACT, folder)
    figures: dict[str, list[float]] = {}
    for expected, outputs in zip(exact, run(samples), strict=True):
        add_call(figures, expected, outputs, _calls(model, samples))
    return cost_of(figures)


def _costliest(costs: Sequence[Cost], subjects: Sequence[Subject], count: int) -> list[int]:
    """The numbers of the operators (not of their weights or activations alone) that cost most."""
    whole = [number for number, subject in enumerate(subjects) if subject.whole]
    return sorted(whole, key=lambda number: costs[number].mean_db)[:count]


def _timed(function: Callable[[], list[Cost]]) -> tuple[list[Cost], float]:
    started = time.process_time()
    costs = function()
    return costs, time.process_time() - started


if __name__ == "__main__":
    main()
