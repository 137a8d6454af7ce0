"""Kernels of three 8-bit 3 x 3 Conv with a residual, with per-channel and per-tensor weight scales."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from bench.tensorrt_baseline import per_tensor
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.targets import open_target
from dovetail.targets.tensorrt.layers import parse_layers

_TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[1,64,32,32] x) => (float[1,64,32,32] y)
{ a0 = Conv<pads = [1,1,1,1]>(x, w0, b0) a = Relu(a0) c0 = Conv<pads = [1,1,1,1]>(a, w1, b1) c = Relu(c0)
  d = Conv<pads = [1,1,1,1]>(c, w2, b2) e = Add(d, a) y = Relu(e) }"""


def convolutions(target_name: str, precisions: tuple[str, ...]) -> None:
    """Print per precision and granularity: kernels, kernels in float16, and the input and output types of the Conv."""
    target = open_target(target_name)
    with tempfile.TemporaryDirectory(prefix="bench-tensorrt-") as name:
        folder = Path(name)
        model = _model(folder / "float.onnx")
        data = open_data({"x": np.random.default_rng(1).standard_normal((4, 1, 64, 32, 32)).astype(np.float32)},
                         input_specs(model))  # fmt: skip
        stats = collect(model, observed(model, target.table), data, workdir=folder, histograms=False)
        for precision in precisions:
            plan = make_plan(model, target.table, stats, Request(target.table.precisions[precision]))
            for granularity, edges in (("per channel", plan.edges), ("per tensor", per_tensor(plan, model))):
                emitted = target.backend.emit(model, dataclasses.replace(plan, edges=edges), folder)
                compiled = target.backend.compile(emitted, folder)
                if compiled.error:
                    print(f"convolutions     {precision:5} {granularity:12} {compiled.error}")
                    continue
                layers, float16_layers = (
                    parse_layers((folder / f"{prefix}layers.txt").read_text()) for prefix in ("", "float16_")
                )
                types = ", ".join(dict.fromkeys(layer.types for layer in layers if layer.kind == "correlation"))
                counts = f"{len(layers)} kernels, in float16 {len(float16_layers)}"
                print(f"convolutions     {precision:5} {granularity:12} {counts}; {types}")


def _model(path: Path) -> ir.Model:
    proto = onnx.parser.parse_model(_TEXT)
    random = np.random.default_rng(0)
    for number in range(3):
        weight = (random.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32)
        bias = random.standard_normal(64).astype(np.float32)
        for name, array in (("w", weight), ("b", bias)):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, f"{name}{number}"))
    onnx.save(proto, path)
    model = read(path)
    infer_shapes(model)
    return model
