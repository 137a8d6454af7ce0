"""CPU time of ``make_plan`` on a vision transformer of many small layers, and how it grows with the graph.

    python -m bench.planning

Prints CPU seconds without garbage collection, the best of three; the ratio is the time of a graph twice as large to
that of the first.
"""

from __future__ import annotations

import gc
import time

import onnx
import onnx_ir as ir

from dovetail.passes.infer_shapes import infer_shapes
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.stats import DataInfo, Stats, TensorStats
from dovetail.targets import open_target

CASES = (("ort-cpu", "w8a8"), ("qnn-htp:sm8550", "w8a16"), ("xnnpack", "w8a8"), ("tensorrt:sm89", "fp8"))
NODES = 2800
_NODES_PER_BLOCK = 14


def main() -> None:
    print(f"{'target':16} {'precision':9} {'nodes':>6} {'seconds':>8} {'nodes':>6} {'seconds':>8} ratio")
    for name, precision in CASES:
        seconds = [planning_s(name, precision, nodes) for nodes in (NODES, 2 * NODES)]
        row = f"{NODES:6} {seconds[0]:8.2f} {2 * NODES:6} {seconds[1]:8.2f}"
        print(f"{name:16} {precision:9} {row} {seconds[1] / seconds[0]:.2f}x", flush=True)


def planning_s(name: str, precision: str, nodes: int) -> float:
    """CPU seconds of one ``make_plan``, the best of three."""
    target, model = open_target(name), blocks(nodes // _NODES_PER_BLOCK)
    stats = Stats({tensor: TensorStats(-1.0, 2.0) for tensor in observed(model, target.table)}, DataInfo("", 1, ""))
    request = Request(target.table.precisions[precision])
    times = []
    gc.collect()
    gc.disable()  # as timeit does: a full collection visits the whole model, however little was planned
    for _ in range(3):
        before = time.process_time()
        make_plan(model, target.table, stats, request)
        times.append(time.process_time() - before)
    gc.enable()
    return min(times)


def blocks(count: int) -> ir.Model:
    """A chain of blocks on one residual stream; each has attention, a Concat and a Slice."""
    lines, weight = [], "float[8,8] w = {" + ",".join(["0.5"] * 64) + "}"
    for i in range(count):
        x, y = f"x{i}", f"x{i + 1}"
        lines += [
            f"q{i} = MatMul({x}, w) k{i} = MatMul({x}, w) v{i} = MatMul({x}, w)",
            f"t{i} = Transpose<perm=[0,2,1]>(k{i}) s{i} = MatMul(q{i}, t{i})",
            f"p{i} = Softmax(s{i}) o{i} = MatMul(p{i}, v{i})",
            f"a{i} = Add({x}, o{i}) h{i} = MatMul(a{i}, w) g{i} = Gelu(h{i}) c{i} = Concat<axis=1>(a{i}, g{i})",
            f"l{i} = Slice(c{i}, zero, four, one) m{i} = Mul(l{i}, g{i}) {y} = Add(a{i}, m{i})",
        ]
    header = f"{weight}, int64[1] zero = {{0}}, int64[1] four = {{4}}, int64[1] one = {{1}}"
    graph = f"g (float[1,4,8] x0) => (float[1,4,8] x{count}) <{header}> {{ {' '.join(lines)} }}"
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {graph}'))
    for number, node in enumerate(model.graph):
        node.name = f"node{number}"
    infer_shapes(model)
    return model


if __name__ == "__main__":
    main()
