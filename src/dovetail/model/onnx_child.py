"""Calls onnx's C++ code on models that arrive on standard input; run as a script by ``onnx_crashes``.

Only onnx's extension module is loaded, which takes 20 ms; the whole package, with NumPy, takes 150.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

# The opset to which models are converted (``opset.OPSET``; this script imports nothing of ours).
OPSET = 21
# The exit code if a step ran out of memory.
OUT_OF_MEMORY = 3


def main(extension: str, memory_bytes: int, time_s: int, calls: list[str]) -> int:
    """Run the calls, each a step and the size of its model, in turn; print the name of each step before it."""
    _limit(memory_bytes, time_s)
    spec = importlib.util.spec_from_file_location("onnx_cpp2py_export", extension)
    if spec is None or spec.loader is None:
        raise ImportError(f"{extension} is not an extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    steps = _steps(module)
    for call in calls:
        name, _, size = call.rpartition("=")
        model = sys.stdin.buffer.read(int(size))
        os.write(1, f"{name}\n".encode())
        try:
            steps[name](model)
        except MemoryError:
            return OUT_OF_MEMORY
        except Exception:  # noqa: BLE001 - onnx reports it again to the parent, which knows the node
            continue
    return 0


def _steps(module: Any) -> dict[str, Callable[[bytes], object]]:
    """The calls that ``opset``, ``read`` and ``inference`` make, by the name that messages use."""

    def infer(model: bytes, follow_values: bool) -> None:
        for strict in (False, True):
            module.shape_inference.infer_shapes(model, False, strict, follow_values)

    return {
        "version converter": lambda model: module.version_converter.convert_version(model, OPSET),
        "checker": lambda model: module.checker.check_model(model, False, False, False),
        "shape inference": lambda model: infer(model, True),
        "shape inference without values": lambda model: infer(model, False),
    }


def _limit(memory_bytes: int, time_s: int) -> None:
    """Limit memory and CPU time, and write no core dump, where the system has such limits."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    for kind, limit in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, time_s), (resource.RLIMIT_CORE, 0)):
        soft, hard = resource.getrlimit(kind)
        own = [value for value in (soft, hard) if value != resource.RLIM_INFINITY]
        resource.setrlimit(kind, (min(limit, *own) if own else limit, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
