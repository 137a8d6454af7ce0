"""The measured process of ``bench.check_time``: one check, after the imports."""

from __future__ import annotations

import tempfile
import time
from typing import Any

from bench.child import run_request


def measure(request: dict[str, Any]) -> dict[str, float]:
    """CPU and wall seconds of one check; the check of a model of one node before it imports everything."""
    from pathlib import Path

    import onnx

    from dovetail.checking import check_file
    from dovetail.targets import open_target

    target = open_target(request["target"])
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.onnx"
        text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }'
        onnx.save(onnx.parser.parse_model(text), small)
        check_file(small, target)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    findings = check_file(request["model"], target)
    return {
        "cpu_s": time.process_time() - cpu_s,
        "wall_s": time.perf_counter() - wall_s,
        "findings": len(findings),
    }


if __name__ == "__main__":
    run_request(measure)
