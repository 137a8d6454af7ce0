"""CPU time of ``make_plan`` on a vision transformer of many small layers, and how it grows with the graph.

    python -m bench.planning

Prints CPU seconds without garbage collection, the best of three; the ratio is the time of a graph twice as large to
that of the first.
"""

from __future__ import annotations

import gc
import time

from tests.networks.attention_blocks import NODES_PER_BLOCK, blocks

from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.stats import DataInfo, Stats, TensorStats
from dovetail.targets import open_target

CASES = (("ort-cpu", "w8a8"), ("qnn-htp:sm8550", "w8a16"), ("xnnpack", "w8a8"), ("tensorrt:sm89", "fp8"))
NODES = 2800


def main() -> None:
    print(f"{'target':16} {'precision':9} {'nodes':>6} {'seconds':>8} {'nodes':>6} {'seconds':>8} ratio")
    for name, precision in CASES:
        seconds = [planning_s(name, precision, nodes) for nodes in (NODES, 2 * NODES)]
        row = f"{NODES:6} {seconds[0]:8.2f} {2 * NODES:6} {seconds[1]:8.2f}"
        print(f"{name:16} {precision:9} {row} {seconds[1] / seconds[0]:.2f}x", flush=True)


def planning_s(name: str, precision: str, nodes: int) -> float:
    """CPU seconds of one ``make_plan``, the best of three."""
    target, model = open_target(name), blocks(nodes // NODES_PER_BLOCK)
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


if __name__ == "__main__":
    main()
