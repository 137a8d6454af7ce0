"""TensorRT-RTX, built ahead of time: attention blocks that are one kernel, layers against float16, a peer, accuracy.

``python -m bench.tensorrt [part ...]``; the parts are ``models``, ``peer``, ``shipped`` and ``convolutions``. ``peer``
needs nvidia-modelopt in an environment of its own, whose Python the variable DOVETAIL_MODELOPT_PYTHON names.
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
# Pictures on which decibels are taken.
MOST_COMPARED = 500
# What an attention layer in 8 bit, written by hand, has more than in float16 (9 layers against 7), and what the
# builder makes of any convolution in 8 bit: a kernel more, for the Quantize behind it.
BY_HAND_PER_BLOCK = 2
CONVOLUTION = "correlation"
WAITING = ("signal", "wait")
# From this depth on a model is taken in its real form.
REAL_LAYERS = 12


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tensorrt", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"{', '.join(PARTS)}; all if none is named")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--head-size", type=int, default=64, help="channels of a head")
    parser.add_argument("--models", default="", help="names with commas between; all by default")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--exporters", default="dynamo-sdpa,torchscript-eager")
    given = parser.parse_args(arguments)
    unknown = [part for part in given.part if part not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]!r}; there is {', '.join(PARTS)}")
    parts = given.part or PARTS
    with tempfile.TemporaryDirectory(prefix="bench-tensorrt-") as folder:
        if "models" in parts:
            models(Path(folder), given)
        if "peer" in parts:
            peer(Path(folder), given)
    if "shipped" in parts:
        shipped()
    if "convolutions" in parts:
        convolutions(TARGET, tuple(PRECISIONS))


def models(folder: Path, given: argparse.Namespace) -> None:
    """Every model from every exporter: fitted, built, read back."""
    from tests.networks.hugging_face import MODELS, Size, hugging_face, image_size

    size = Size(given.layers, given.heads, given.head_size, real=given.layers >= REAL_LAYERS)
    print(f"{'':31}attention as one kernel           layers       kernels")
    print(f"{'model':7} {'exporter':17} {'type':5} as planned             fp16   ours  fp16   ours  fp16  by hand")
    for name in given.models.split(",") if given.models else MODELS:
        data = pictures(image_size(name, size))
        for exporter in given.exporters.split(","):
            path = hugging_face(name, exporter, size)
            for precision in given.precisions.split(","):
                run = folder / f"{name}_{exporter}_{precision}"
                result = dovetail.fit(path, target=TARGET, precision=precision, calibration=data, output=run)
                print(f"{name:7} {exporter:17} {precision:5} {row(result, run)}", flush=True)


def row(result: Result, run: Path) -> str:
    """Blocks as one kernel, and layers, here and in float16; what a variant written by hand may have at most."""
    built, in_float16 = (parse_layers((run / "compile" / f"{n}layers.txt").read_text()) for n in ("", "float16_"))
    blocks = find_blocks(unquantized(ir.load(run / "model.onnx")), built, in_float16)
    kinds = Counter(block.layer.types if block.layer else "none" for block in blocks if block.as_planned)
    fused = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "0"
    ours, float16 = kernels(built), kernels(in_float16)
    convolutions = sum(one.kind == CONVOLUTION and one.inputs[0].dtype != "Half" for one in built)
    by_hand = float16 + BY_HAND_PER_BLOCK * len(blocks) + convolutions
    values = result.metrics.sqnr_db.simulation_vs_float.values()
    worst = min((value for value in values if value is not None), default=float("nan"))
    counts = f"{fused + f' of {len(blocks)}':22} {sum(bool(b.fused_in_float16) for b in blocks):4}"
    sizes = f"{len(built):4} {len(in_float16):5}   {ours:4} {float16:5}  {by_hand:7}"
    return f"{counts}   {sizes}   fidelity {result.verdicts['fidelity'].status}, simulation {worst:.1f} dB"


def kernels(layers: Sequence[Layer]) -> int:
    """Layers that do work; the others let streams wait for each other."""
    return sum(one.kind not in WAITING for one in layers)


def peer(folder: Path, given: argparse.Namespace) -> None:
    """A ViT by nvidia-modelopt: as it leaves it, repaired, and fitted here from the float file."""
    python = os.environ.get(VARIABLE)
    if not python:
        print(f"nvidia-modelopt: not checked: {VARIABLE} names no Python that has it")
        return
    from tests.networks.hugging_face import Size, hugging_face, image_size

    size = Size(given.layers, given.heads, given.head_size)
    data = pictures(image_size("vit", size))
    np.savez(folder / "data.npz", allow_pickle=False, **data)
    for exporter in given.exporters.split(","):
        path = hugging_face("vit", exporter, size)
        for precision, mode in PRECISIONS.items():
            made, run = folder / f"modelopt_{exporter}_{mode}.onnx", folder / f"repaired_{exporter}_{mode}"
            script = Path(__file__).with_name("peer_modelopt.py")
            # -P: beside the script is a file called tensorrt.py, which is not what modelopt wants to import.
            command = [python, "-P", str(script), str(path), str(made), mode, str(folder / "data.npz")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{exporter:18} {precision:5} nvidia-modelopt failed: {done.stderr.strip()[-200:]}")
                continue
            result, record = repair(made, FitOptions(TARGET, precision), run, calibration=data)
            print(f"{exporter:18} {precision:5} nvidia-modelopt: {'; '.join(record.as_given)}")
            print(f"{exporter:18} {precision:5} repaired:        {said(result)}", flush=True)


def shipped() -> None:
    """Accuracy of the exact simulation on all held-out pictures, and its dB beside one scale per tensor by maximum."""
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
                samples = pictures_of(model.eval())
                reached = {
                    output: [sqnr_db(model.model_path, path, samples, output) for path in (run / "model.onnx", naive)]
                    for output in result.metrics.sqnr_db.simulation_vs_float
                }
            figures = result.metrics.accuracy.figures if result.metrics.accuracy else {}
            decibels = ", ".join(f"{key} {ours:.2f} dB, by maximum {base:.2f}" for key, (ours, base) in reached.items())
            print(f"{name:16} {precision:5} {figures} {said(result)}; {decibels}", flush=True)


def pictures_of(arrays: dict[str, Any]) -> list[dict[str, Any]]:
    """Held-out data sample by sample."""
    count = len(next(iter(arrays.values())))
    return [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(min(count, MOST_COMPARED))]


def said(result: Result) -> str:
    """One line: the verdict, the blocks, the layers, the worst output."""
    told = ("attention blocks: as one kernel", "the engine has")
    notes = [n for n in result.notes if any(words in n for words in told) and not n.startswith("as given")]
    values = result.metrics.sqnr_db.simulation_vs_float.values()
    worst = min((value for value in values if value is not None), default=float("nan"))
    return f"{result.verdicts['fidelity'].status:9} {'; '.join(reversed(notes))}; simulation {worst:.1f} dB"


def pictures(size: int) -> dict[str, Any]:
    """Seeded noise over smooth random pictures."""
    random = np.random.default_rng(0)
    coarse = random.standard_normal((SAMPLES, 3, size // 8, size // 8)).repeat(8, axis=2).repeat(8, axis=3)
    return {"x": (coarse + 0.1 * random.standard_normal((SAMPLES, 3, size, size))).astype(np.float32)}


if __name__ == "__main__":
    main()
