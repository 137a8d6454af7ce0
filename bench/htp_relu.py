"""Conv -> Relu into a Concat with negative values on HTP: the Relu separate, or the Concat's inputs converted.

``python -m bench.htp_relu`` prints for both, and for what is planned (a conversion where the Relu has other consumers),
the vendor's estimate and the SQNR of the simulation against float. The two are equally fast in 8 bit and where only the
Concat reads the Relu; in 16 bit a Relu with other consumers is 4 to 13 % faster with a conversion. In 8 bit a separate
Relu is 0.2 to 0.3 dB better where only the Concat reads it, and as much worse elsewhere (onnxruntime-qnn 2.7.0).
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir

from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.edge import Edge
from dovetail.model.read import read
from dovetail.model.session import Mode
from dovetail.numerics.metrics import sqnr_db
from dovetail.op_support import W8A8, W8A16, Precision
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Pins, Request
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.verify.run import SessionRun

# As in HGNetV2: every convolution of a block is concatenated with its input, which another layer made negative.
_LAYERS = 4
_SAMPLES = 4


def block(channels: int, side: int, in_a_row: bool, path: Path) -> ir.Model:
    """Convolutions in a row, or side by side, whose outputs are concatenated with the input of the first."""
    random = np.random.default_rng(0)
    names = ["x", *(f"r{index}" for index in range(_LAYERS))]
    nodes = [
        f"c{i} = Conv<pads = [1,1,1,1]>({names[i if in_a_row else 0]}, w{i}, b{i})  r{i} = Relu(c{i})"
        for i in range(_LAYERS)
    ]
    total = channels * (_LAYERS + 1)
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[1,{channels},{side},{side}] x) => '
        f"(float[1,{channels},{side},{side}] y) {{ {' '.join(nodes)} m = Concat<axis = 1>({', '.join(names)}) "
        f"y = Conv(m, w, b) }}"
    )
    shapes = {f"w{i}": (channels, channels, 3, 3) for i in range(_LAYERS)} | {"w": (channels, total, 1, 1)}
    for name, shape in shapes.items():
        weight = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        bias = random.standard_normal(channels) / 4
        for key, array in ((name, weight), (name.replace("w", "b"), bias)):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), key))
    onnx.save(proto, path)
    model = read(path)
    infer_shapes(model)
    return model


def measure(target: Target, precision: Precision, size: tuple[int, int], in_a_row: bool, folder: Path) -> None:
    """Print both variants of one block."""
    channels, side = size
    model = block(channels, side, in_a_row, folder / "float.onnx")
    arrays = np.random.default_rng(1).standard_normal((_SAMPLES, 1, channels, side, side)).astype(np.float32)
    data = open_data({"x": arrays}, input_specs(model))
    stats = collect(model, observed(model, target.table), data, workdir=folder, histograms=False)
    concat = next(node for node in model.graph if node.op_type == "Concat")
    edges = {Edge(concat.name or "", index): "converted" for index in range(1, _LAYERS + 1)}
    (expected,) = SessionRun(model, Mode.FLOAT, folder)([{"x": arrays[0]}])
    with mock.patch("dovetail.plan.make.negative_merges", return_value={}):
        separate = make_plan(model, target.table, stats, Request(precision))
    converted = make_plan(model, target.table, stats, Request(precision, pins=Pins(separate=edges)))
    planned = make_plan(model, target.table, stats, Request(precision))
    plans = {"Relu separate": separate, "inputs converted": converted, "as planned": planned}
    for label, plan in plans.items():
        artifacts = target.backend.emit(model, plan, folder)
        compiled = target.backend.compile(artifacts, folder)
        (simulated,) = SessionRun(artifacts[0].path, Mode.EXACT, folder)([{"x": arrays[0]}])
        simulation_db = sqnr_db(expected["y"], simulated["y"])
        time = compiled.error or ("no estimate" if compiled.estimate is None else f"{compiled.estimate.mid_us:.0f} us")
        where = (
            f"{precision.name:6} {channels:3} channels {side} x {side} {'in a row' if in_a_row else 'side by side':12}"
        )
        print(f"{where} {label:17} {time:>9} {simulation_db:5.1f} dB", flush=True)


def main() -> None:
    """Measure blocks of three sizes in both precisions."""
    target = open_target("qnn-htp:soc52", {"vtcm_mb": "8"})
    with tempfile.TemporaryDirectory(prefix="bench-htp-relu-") as name:
        cases = itertools.product((W8A8, W8A16), ((16, 32), (32, 40), (64, 20)), (True, False))
        for precision, size, in_a_row in cases:
            measure(target, precision, size, in_a_row, Path(name))


if __name__ == "__main__":
    main()
