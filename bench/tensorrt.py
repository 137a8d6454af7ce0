"""TensorRT-RTX engines built ahead of time: attention blocks fused into one kernel, number of layers compared with
float16, models quantized by nvidia-modelopt before and after repair, and accuracy of the simulation.

``python -m bench.tensorrt [part ...]``; the parts are ``models``, ``peer``, ``shipped`` and ``convolutions``. ``peer``
(a model quantized by another tool) needs nvidia-modelopt in its own environment; set DOVETAIL_MODELOPT_PYTHON to the
Python of that environment.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import dovetail
from bench.tensorrt_baseline import max_calibrated, sqnr_db
from bench.tensorrt_convolutions import convolutions
from dovetail import zoo
from dovetail.calibrate.user_code import load_function
from dovetail.config import FitOptions
from dovetail.repairs import repair
from dovetail.report.result import Result
from dovetail.targets import open_target
from dovetail.targets.tensorrt.coverage import find_blocks
from dovetail.targets.tensorrt.layers import Layer, parse_layers
from dovetail.targets.tensorrt.unquantized import unquantized

TARGET = "tensorrt:sm89"
PARTS = ("models", "peer", "shipped", "convolutions")
VARIABLE = "DOVETAIL_MODELOPT_PYTHON"
PRECISIONS = {"fp8": "fp8", "w8a8": "int8"}  # ours -> modelopt's
SAMPLES = 8
# The number of held-out images for which SQNR is computed.
MAX_COMPARED = 500
# With Q/DQ pairs placed by hand, an attention block has two more layers in 8 bit than in float16 (9 instead of 7), and
# every 8-bit Conv has one more kernel, for the QuantizeLinear after it.
BY_HAND_PER_BLOCK = 2
# The builder's names for Conv kernels and for layers that only synchronize streams.
CONVOLUTION = "correlation"
SYNCHRONIZATION = ("signal", "wait")
# From this number of layers on, DETR has its real backbone and sizes.
REAL_LAYERS = 12


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tensorrt", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"one or more of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--layers", type=int, default=12, help="transformer layers")
    parser.add_argument("--heads", type=int, default=3, help="attention heads")
    parser.add_argument("--head-size", type=int, default=64, help="channels per head")
    parser.add_argument("--models", default="", help="comma-separated names (default: all)")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="comma-separated")
    parser.add_argument("--exporters", default="dynamo-sdpa,torchscript-eager", help="comma-separated")
    options = parser.parse_args(arguments)
    unknown = [part for part in options.part if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; expected one of {', '.join(PARTS)}")
    parts = options.part or PARTS
    with tempfile.TemporaryDirectory(prefix="bench-tensorrt-") as folder:
        if "models" in parts:
            models(Path(folder), options)
        if "peer" in parts:
            peer(Path(folder), options)
    if "shipped" in parts:
        shipped()
    if "convolutions" in parts:
        convolutions(TARGET, tuple(PRECISIONS))


def models(folder: Path, options: argparse.Namespace) -> None:
    """Fit every model from every exporter, and print one row per engine."""
    from tests.networks.hugging_face import MODELS, Size, hugging_face, image_size

    size = Size(options.layers, options.heads, options.head_size, real=options.layers >= REAL_LAYERS)
    print(f"{'':31}attention as one kernel           layers       kernels")
    print(f"{'model':7} {'exporter':17} {'type':5} as planned             fp16   ours  fp16   ours  fp16  by hand")
    for name in options.models.split(",") if options.models else MODELS:
        data = random_images(image_size(name, size))
        for exporter in options.exporters.split(","):
            path = hugging_face(name, exporter, size)
            for precision in options.precisions.split(","):
                run = folder / f"{name}_{exporter}_{precision}"
                result = dovetail.fit(path, target=TARGET, precision=precision, calibration=data, output=run)
                print(f"{name:7} {exporter:17} {precision:5} {row(result, run)}", flush=True)


def row(result: Result, run: Path) -> str:
    """Format fused attention blocks, layers and kernels, in 8 bit and in float16, and the kernels of Q/DQ by hand."""
    layers, float16_layers = (
        parse_layers((run / "compile" / f"{prefix}layers.txt").read_text()) for prefix in ("", "float16_")
    )
    blocks = find_blocks(unquantized(ir.load(run / "model.onnx")), layers, float16_layers)
    kinds = Counter(block.layer.types if block.layer else "none" for block in blocks if block.as_planned)
    fused = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "0"
    ours, float16 = kernels(layers), kernels(float16_layers)
    convolutions = sum(layer.kind == CONVOLUTION and layer.inputs[0].dtype != "Half" for layer in layers)
    by_hand = float16 + BY_HAND_PER_BLOCK * len(blocks) + convolutions
    counts = f"{fused + f' of {len(blocks)}':22} {sum(bool(block.fused_in_float16) for block in blocks):4}"
    sizes = f"{len(layers):4} {len(float16_layers):5}   {ours:4} {float16:5}  {by_hand:7}"
    return f"{counts}   {sizes}   fidelity {result.verdicts['fidelity'].status}, simulation {worst_db(result):.1f} dB"


def kernels(layers: Sequence[Layer]) -> int:
    """Count the layers that are kernels; the others only synchronize streams."""
    return sum(layer.kind not in SYNCHRONIZATION for layer in layers)


def peer(folder: Path, options: argparse.Namespace) -> None:
    """Quantize a ViT with nvidia-modelopt and print its engine as it is and after ``dovetail repair``."""
    python = os.environ.get(VARIABLE)
    if not python:
        print(f"nvidia-modelopt: not checked; set {VARIABLE} to the Python of an environment that has it")
        return
    from tests.networks.hugging_face import Size, hugging_face, image_size

    size = Size(options.layers, options.heads, options.head_size)
    data = random_images(image_size("vit", size))
    np.savez(folder / "data.npz", allow_pickle=False, **data)
    for exporter in options.exporters.split(","):
        path = hugging_face("vit", exporter, size)
        for precision, mode in PRECISIONS.items():
            quantized, run = folder / f"modelopt_{exporter}_{mode}.onnx", folder / f"repaired_{exporter}_{mode}"
            script = Path(__file__).with_name("peer_modelopt.py")
            # -P: without it, modelopt would import the tensorrt.py of this folder as the tensorrt package.
            command = [python, "-P", str(script), str(path), str(quantized), mode, str(folder / "data.npz")]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            if process.returncode:
                print(f"{exporter:18} {precision:5} nvidia-modelopt failed: {process.stderr.strip()[-200:]}")
                continue
            result, record = repair(quantized, FitOptions(TARGET, precision), run, calibration=data)
            print(f"{exporter:18} {precision:5} nvidia-modelopt: {'; '.join(record.as_given)}")
            print(f"{exporter:18} {precision:5} repaired:        {summary(result)}", flush=True)


def shipped() -> None:
    """Print accuracy of the exact simulation on all held-out images, and its SQNR compared with a naive baseline.

    The baseline quantizes the same edges with one scale per tensor, from the largest absolute value.
    """
    target = open_target(TARGET)
    for name in zoo.names():
        model = zoo.load(name)
        for precision in PRECISIONS:
            with tempfile.TemporaryDirectory(prefix="bench-tensorrt-") as folder:
                run = Path(folder) / "run"
                result = dovetail.fit(
                    model.model_path,
                    target=TARGET,
                    precision=precision,
                    range="mse",
                    calibration=model.calib(),
                    evaluation={**model.eval(), **model.targets()},
                    metric=load_function(model.metric),
                    output=run,
                )
                naive = max_calibrated(run, target, precision, Path(folder))
                samples = first_samples(model.eval())
                sqnr = {
                    output: [sqnr_db(model.model_path, path, samples, output) for path in (run / "model.onnx", naive)]
                    for output in result.metrics.sqnr_db.simulation_vs_float
                }
            figures = result.metrics.accuracy.figures if result.metrics.accuracy else {}
            decibels = ", ".join(f"{key} {ours:.2f} dB, by maximum {base:.2f}" for key, (ours, base) in sqnr.items())
            print(f"{name:16} {precision:5} {figures} {summary(result)}; {decibels}", flush=True)


def first_samples(arrays: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the first ``MAX_COMPARED`` samples of the held-out arrays, one dict per sample."""
    count = len(next(iter(arrays.values())))
    return [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(min(count, MAX_COMPARED))]


def summary(result: Result) -> str:
    """Format one line: the fidelity verdict, the fused attention blocks, the layers, the worst output."""
    phrases = ("attention blocks: as one kernel", "the engine has")  # of targets/tensorrt/compile.py
    notes = [note for note in result.notes if any(text in note for text in phrases) and not note.startswith("as given")]
    return f"{result.verdicts['fidelity'].status:9} {'; '.join(reversed(notes))}; simulation {worst_db(result):.1f} dB"


def worst_db(result: Result) -> float:
    """The SQNR of the simulation against float on the worst output."""
    values = result.metrics.sqnr_db.simulation_vs_float.values()
    return min((value for value in values if value is not None), default=float("nan"))


def random_images(size: int) -> dict[str, Any]:
    """Seeded smooth random images with a little noise."""
    random = np.random.default_rng(0)
    coarse = random.standard_normal((SAMPLES, 3, size // 8, size // 8)).repeat(8, axis=2).repeat(8, axis=3)
    return {"x": (coarse + 0.1 * random.standard_normal((SAMPLES, 3, size, size))).astype(np.float32)}


if __name__ == "__main__":
    main()
