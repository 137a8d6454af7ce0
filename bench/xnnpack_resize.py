"""Time of Resize in ExecuTorch: with operators that XNNPACK has, relative to the torch function that samples alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import torch

from bench.xnnpack_programs import Program, interleaved_us
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.targets.xnnpack.lower import lower
from dovetail.targets.xnnpack.operators.plain import PLAIN
from dovetail.targets.xnnpack.operators.registry import OPERATORS

CHANNELS = 64
# Mode and coordinates, size before and after.
CASES = (
    ("nearest", "asymmetric", (20, 20), (40, 40)),
    ("nearest", "asymmetric", (25, 42), (50, 83)),
    ("nearest", "asymmetric", (80, 80), (159, 159)),
    ("cubic", "half_pixel", (20, 20), (40, 40)),
    ("cubic", "half_pixel", (80, 80), (160, 160)),
    ("linear", "half_pixel", (80, 80), (160, 160)),
    ("linear", "asymmetric", (80, 80), (160, 160)),
)


def main(folder: Path, *, seconds: float, quick: bool) -> None:
    """Print one line per case: our time relative to the torch function, and in microseconds."""
    print(
        f"Resize of {CHANNELS} channels between two 1x1 convolutions, in CPU time of one thread: torch's function, ours"
    )
    for mode, coordinates, before, after in CASES[:1] if quick else CASES:
        programs = []
        for name, operators in (("stock", PLAIN), ("ours", OPERATORS)):
            path = folder / f"{name}.pte"
            lower(_graph(mode, coordinates, before, after), path, operators)
            programs.append(Program(path))
        times_us = interleaved_us(programs, torch.randn(1, CHANNELS, *before), seconds)
        stock_us, ours_us = np.median(times_us, axis=0)
        label = f"{mode} {coordinates} {before[0]}x{before[1]} to {after[0]}x{after[1]}"
        print(f"  {label}: {stock_us:.0f} us, {ours_us:.0f} us, ratio {ours_us / stock_us:.2f}", flush=True)


def _graph(mode: str, coordinates: str, before: tuple[int, int], after: tuple[int, int]) -> ir.Model:
    sizes = [f"float[1,{CHANNELS},{height},{width}]" for height, width in (before, after)]
    attributes = f'mode="{mode}", coordinate_transformation_mode="{coordinates}", nearest_mode="floor"'
    text = f"""g ({sizes[0]} x) => ({sizes[1]} y) <int64[4] size = {{1,{CHANNELS},{after[0]},{after[1]}}}>
        {{ a = Conv(x, w)  b = Resize<{attributes}>(a, , , size)  y = Conv(b, w) }}"""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    weight = np.eye(CHANNELS, dtype=np.float32).reshape(CHANNELS, CHANNELS, 1, 1)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    model = ir.from_proto(proto)
    infer_shapes(model)
    return model
