"""Mixed precision (`--precision auto`) against one precision for the whole model.

    python -m bench.auto fp8            # random-weight DeiT, CLIP, DETR in FP8 with at most 10 % of MACs in float16
    python -m bench.auto shipped        # shipped models on qnn-htp:soc52: accuracy, and the vendor's estimate
    python -m bench.auto ocr            # PP-OCRv6's recognizer and detector, the same; --max-drop is the goal of `auto`
    python -m bench.auto fp8 --networks deit --seeds 1
    python -m bench.auto ocr --networks rec --lines 400 --rounding nearest

``fp8`` prints, per network and seed of the weights, the SQNR of the worst output against float on images that were not
calibrated on, mean per image: FP8, the plan that `auto` chooses with attention kept in FP8, the gain per image with its
standard deviation, the plan, its share of MACs in float16, and how many attention blocks the engine runs as one FP8
kernel. ``shipped`` prints the metric
on held-out data in float and in simulation, and the estimated latency of `auto` relative to `w8a16`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dovetail import zoo
from dovetail.backend import Sample
from dovetail.calibrate.user_code import load_function
from dovetail.config import options_from
from dovetail.job import prepare
from dovetail.model.attention import find_attention
from dovetail.model.session import Mode
from dovetail.numerics.methods import AUTO_ROUNDING, RoundingMethod
from dovetail.op_support import AUTO
from dovetail.pipeline import fit
from dovetail.qdq.simulation import load_simulation
from dovetail.report.result import Result
from dovetail.verify.compare import compare_runs
from dovetail.verify.run import SessionRun

NETWORKS = ("deit", "clip", "detr")
CALIBRATION, HELD_OUT = 64, 64
MAX_FLOAT = 0.1
CHIP = "qnn-htp:soc52"
# How much of the metric `auto` may lose on PP-OCR's networks, and the lines of text on a page, about.
MAX_DROP, LINES_PER_PAGE = 0.003, 6


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("fp8", "shipped", "ocr"))
    parser.add_argument("--networks", default="")
    parser.add_argument("--lines", type=int, default=400)
    parser.add_argument("--rounding", default=AUTO_ROUNDING, help="of `auto` in ocr: nearest, second-order, ...")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-auto-") as folder:
        if options.part == "shipped":
            shipped(Path(folder))
            return
        if options.part == "ocr":
            for network in (options.networks or "rec,det").split(","):
                ocr(network, options.lines, options.rounding, Path(folder))
            return
        for network in (options.networks or ",".join(NETWORKS)).split(","):
            gains = [fp8(network, seed, options.layers, Path(folder)) for seed in range(options.seeds)]
            print(f"{network}: mean gain {statistics.fmean(gains):+.2f} dB over {len(gains)} seeds", flush=True)


def fp8(network: str, seed: int, layers: int, folder: Path) -> float:
    """One network with one seed: prints a line, and returns the mean gain per image."""
    from tests.networks.hugging_face import Size, hugging_face, image_size

    size = Size(layers=layers, heads=3)
    model = hugging_face(network, "dynamo-sdpa", size, seed)
    side = image_size(network, size)
    samples = pictures(side, CALIBRATION + HELD_OUT, seed)
    calibration = {"x": samples[:CALIBRATION, None]}
    held_out = [{"x": sample[None]} for sample in samples[CALIBRATION:]]
    runs = [folder / f"{network}-{seed}-{kind}" for kind in ("fp8", AUTO)]
    results = [_fitted(model, calibration, run) for run in runs]
    exact = list(SessionRun(model, Mode.FLOAT, folder)(held_out))
    before, after = (_per_image(exact, run / "model.onnx", held_out, folder) for run in runs)
    gains = [b - a for a, b in zip(before, after, strict=True)]
    whole = next(row for row in results[1].decisions if row.knob == "mixed" and row.is_whole)
    share = next(row.figures["float_macs_percent"] for row in whole.alternatives if row.label == whole.taken)
    attention = next((note for note in results[1].notes if "attention blocks" in note), "no attention block")
    print(
        f"{network} seed {seed}: fp8 {statistics.fmean(before):.1f} dB, auto {statistics.fmean(after):.1f} dB, per "
        f"image {statistics.fmean(gains):+.2f} ± {statistics.stdev(gains):.2f} dB, {whole.taken}, {share:.1f} % of "
        f"MACs in float16, fidelity {results[1].verdicts['fidelity'].status}; {attention}",
        flush=True,
    )
    return statistics.fmean(gains)


def _fitted(model: Path, calibration: dict[str, np.ndarray], run: Path) -> Result:
    """FP8 alone, or a mixture: attention in FP8, all other operators in FP8, int8 or float16; weights to nearest."""
    is_auto = run.name.endswith(AUTO)
    values = {"target": "tensorrt:sm89", "precision": AUTO if is_auto else "fp8", "baselines": "none", "min_sqnr": None}
    values |= {"rounding": RoundingMethod.NEAREST}  # so that the gain is that of the mixture
    values |= {"max_float": MAX_FLOAT, "keep": _attention(model)} if is_auto else {}
    return fit(prepare(model, options_from(values), calibration=calibration), run)


def _attention(model: Path) -> tuple[str, ...]:
    """The options that keep the MatMuls of every attention block in FP8, but those of constants, which are folded."""
    graph = ir.load(model).graph
    computed = set(graph.inputs)
    for node in graph:
        computed |= set(node.outputs) if computed.intersection(node.inputs) else set()
    nodes = [node for block in find_attention(graph) for node in (block.scores, block.mix)]
    return tuple(f"{node.name}=fp8" for node in nodes if computed.intersection(node.inputs))


def _per_image(exact: Sequence[Sample], emitted: Path, samples: Sequence[Sample], folder: Path) -> list[float]:
    """The SQNR of every image, of the output with the lowest mean."""
    run = SessionRun(load_simulation(emitted), Mode.EXACT, folder)
    per_sample = compare_runs(exact, run(samples)).per_sample
    return list(min(per_sample.values(), key=statistics.fmean))


def pictures(side: int, count: int, seed: int) -> np.ndarray:
    """Smooth random images."""
    random = np.random.default_rng(100 + seed)
    coarse = random.standard_normal((count, 3, side // 8, side // 8)).astype(np.float32)
    fine = coarse.repeat(8, axis=-2).repeat(8, axis=-1)
    return (fine + 0.1 * random.standard_normal(fine.shape)).astype(np.float32)


def shipped(folder: Path) -> None:
    """The shipped models on HTP: `w8a16` and `auto`."""
    for name in zoo.names():
        model = zoo.load(name)
        results = {}
        for precision in ("w8a16", AUTO):
            options = options_from({"target": CHIP, "precision": precision, "baselines": "none"})
            job = prepare(
                model.model_path,
                options,
                calibration=model.calib(),
                evaluation={**model.eval(), **model.targets()},
                metric=load_function(model.metric),
            )
            results[precision] = fit(job, folder / f"{name}-{precision}")
        print(_row(name, results["w8a16"], results[AUTO]), flush=True)


def ocr(network: str, lines: int, rounding: str, folder: Path) -> None:
    """A network of PP-OCRv6 on HTP: `w8a16`, and `auto` that may lose 0.3 points, or one sample if that is more."""
    from tests.networks import rendered_lines, rendered_pages
    from tests.networks.pretrained import NETWORKS as PRETRAINED

    pretrained = PRETRAINED[f"ppocrv6-{network}"]
    path, data = pretrained.path, pretrained.evaluation(pretrained.path)
    if network == "rec":
        texts = rendered_lines.texts(lines, seed=7)
        data = {"x": rendered_lines.degraded(texts, seed=8), "text": rendered_lines.encode(texts)}
    else:
        data = rendered_pages.pages(max(lines // LINES_PER_PAGE, 1), seed=2)
    if pretrained.metric is None:
        raise ValueError(f"{network} has no metric")
    results = {}
    for precision in ("w8a16", AUTO):
        values = {"target": CHIP, "precision": precision, "baselines": "none", "shape": pretrained.shape}
        values |= {"max_drop": max(MAX_DROP, 1 / lines), "rounding": rounding} if precision == AUTO else {}
        job = prepare(
            path,
            options_from(values),
            calibration=pretrained.calibration(),
            evaluation=data,
            metric=pretrained.metric(path),
        )
        results[precision] = fit(job, folder / f"{network}-{precision}")
    print(_row(f"PP-OCRv6 {network}", results["w8a16"], results[AUTO]), flush=True)


def _row(name: str, fixed: Result, auto: Result) -> str:
    accuracy = auto.metrics.accuracy
    if accuracy is None:
        raise ValueError("there is no metric")
    plain = fixed.metrics.accuracy.figures["simulation"] if fixed.metrics.accuracy is not None else {}
    figures = ", ".join(
        f"{key} {accuracy.figures['float'][key]:.4f}, auto {value:.4f}, w8a16 {plain.get(key, math.nan):.4f}"
        for key, value in accuracy.figures["simulation"].items()
    )
    chosen = next(row.taken for row in auto.decisions if row.knob == "mixed" and row.is_whole)
    estimates = [result.metrics.latency_estimate_us["fitted"].mid_us for result in (fixed, auto)]
    failed = [key for key, verdict in auto.verdicts.items() if verdict.status == "fail"]
    return (
        f"{name}: {chosen}; {figures}; estimate {estimates[1]} us, {estimates[1] / estimates[0]:.2f} of w8a16; "
        f"verdicts that failed: {', '.join(failed) or 'none'}"
    )


if __name__ == "__main__":
    main()
