"""Three 3 x 3 convolutions and a residual in 8 bit, with a weight scale per channel and per tensor: kernels by type."""

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
    """One line per precision and granularity: kernels, those in float16, and what the convolutions write."""
    target = open_target(target_name)
    with tempfile.TemporaryDirectory(prefix="bench-tensorrt-") as name:
        folder = Path(name)
        model = _model(folder / "float.onnx")
        data = open_data({"x": np.random.default_rng(1).standard_normal((4, 1, 64, 32, 32)).astype(np.float32)},
                         input_specs(model))  # fmt: skip
        stats = collect(model, observed(model, target.table), data, workdir=folder, histograms=False)
        for precision in precisions:
            plan = make_plan(model, target.table, stats, Request(target.table.precisions[precision]))
            for words, edges in (("per channel", plan.edges), ("per tensor", per_tensor(plan, model))):
                emitted = target.backend.emit(model, dataclasses.replace(plan, edges=edges), folder)
                compiled = target.backend.compile(emitted, folder)
                if compiled.error:
                    print(f"convolutions     {precision:5} {words:12} {compiled.error}")
                    continue
                built, plain = (parse_layers((folder / f"{n}layers.txt").read_text()) for n in ("", "float16_"))
                kinds = ", ".join(dict.fromkeys(one.types for one in built if one.kind == "correlation"))
                print(
                    f"convolutions     {precision:5} {words:12} {len(built)} kernels, in float16 {len(plain)}; {kinds}"
                )


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
