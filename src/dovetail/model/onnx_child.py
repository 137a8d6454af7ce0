"""Calls onnx's C++ code on the model that arrives on standard input; run as a script by ``onnx_crashes``.

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


def main(extension: str, memory_bytes: int, time_s: int, names: list[str]) -> int:
    """Run the steps in turn, each on the model that the step before returned; print the name of each before it."""
    _limit(memory_bytes, time_s)
    spec = importlib.util.spec_from_file_location("onnx_cpp2py_export", extension)
    if spec is None or spec.loader is None:
        raise ImportError(f"{extension} is not an extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    steps = _steps(module)
    model = sys.stdin.buffer.read()
    for name in names:
        os.write(1, f"{name}\n".encode())
        try:
            model = steps[name](model)
        except MemoryError:
            return OUT_OF_MEMORY
        except Exception:  # noqa: BLE001 - onnx reports it again to the parent, which knows the node
            return 0
    return 0


def _steps(module: Any) -> dict[str, Callable[[bytes], bytes]]:
    """The calls that ``opset``, ``read`` and ``inference`` make, by the name that messages use."""

    def check(model: bytes) -> bytes:
        module.checker.check_model(model, False, False, False)
        return model

    def infer(model: bytes) -> bytes:
        for strict in (False, True):
            module.shape_inference.infer_shapes(model, False, strict, True)
        return model

    def convert(model: bytes) -> bytes:
        return bytes(module.version_converter.convert_version(model, OPSET))

    return {"version converter": convert, "checker": check, "shape inference": infer}


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
