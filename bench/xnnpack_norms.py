"""Time of LayerNorm in ExecuTorch: decomposed into operators that XNNPACK has, relative to the portable kernel."""

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

SIZES = ((197, 192), (197, 384), (197, 768), (577, 1024), (1024, 256), (3136, 96), (50, 1024))


def main(folder: Path, *, seconds: float, quick: bool) -> None:
    """Print one line per size: our time relative to the portable kernel, on one thread and on two."""
    print("LayerNorm between two Relu, ours relative to the portable kernel: CPU time on one thread, wall time on two")
    for rows, width in SIZES[:1] if quick else SIZES:
        programs = []
        for name, operators in (("stock", PLAIN), ("ours", OPERATORS)):
            path = folder / f"{name}.pte"
            lower(_graph(rows, width), path, operators)
            programs.append(Program(path))
        ratios = [
            float(np.median(times_us[:, 1] / times_us[:, 0]))
            for times_us in (
                interleaved_us(programs, torch.randn(1, rows, width), seconds, threads) for threads in (1, 2)
            )
        ]
        print(f"  [{rows}, {width}]: {ratios[0]:.2f}, on two threads {ratios[1]:.2f}", flush=True)


def _graph(rows: int, width: int) -> ir.Model:
    shape = f"float[1,{rows},{width}]"
    text = f"g ({shape} x) => ({shape} y) {{ h = Relu(x) n = LayerNormalization(h, scale, bias) y = Relu(n) }}"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for name in ("scale", "bias"):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(width, np.float32), name))
    model = ir.from_proto(proto)
    infer_shapes(model)
    return model
