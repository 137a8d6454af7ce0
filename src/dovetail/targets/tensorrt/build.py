"""What the TensorRT-RTX builder does in a child process: parse, build ahead of time, and say what it made."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

_LAYERS = "Layers:"
# The builder waits for ever for a thread of its own that got no memory: it is stopped this far below the limit.
_HEADROOM_BYTES = 64 << 20
_POLL_S = 0.02


def _watch_memory() -> None:
    """End the process, saying why, when its address space comes near to its limit."""
    try:
        import resource
    except ImportError:  # not on Windows, where there is no limit either
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    statm = Path("/proc/self/statm")
    while limit != resource.RLIM_INFINITY and statm.exists():
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        if used > limit - _HEADROOM_BYTES:
            os.write(1, b"cannot allocate memory\n")
            os._exit(1)
        time.sleep(_POLL_S)


def build_in_child(model: str, engine: str, layers: str, sm: int) -> dict[str, Any]:
    """Build a strongly typed network for one compute capability; write the engine and the builder's layer list."""
    import tensorrt_rtx as trt

    threading.Thread(target=_watch_memory, daemon=True).start()
    said: list[tuple[Any, str]] = []

    class Listener(trt.ILogger):  # type: ignore[misc]
        """Keeps what the builder says, in order."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            said.append((severity, message))

    listener = Listener()
    builder = trt.Builder(listener)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, listener)
    if not parser.parse_from_file(model):
        errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        return {"error": f"the parser refuses it: {_one_line(errors)}", "version": trt.__version__}
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{sm}"), 0)
    built = builder.build_serialized_network(network, config)
    errors = [text for severity, text in said if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)]
    _print([text for severity, text in said if severity == trt.ILogger.WARNING] + errors)
    if built is None:
        return {"error": f"the builder refuses it: {_one_line(errors)}", "version": trt.__version__}
    Path(engine).write_bytes(bytes(built))
    listed = next((text for _, text in said if text.lstrip().startswith(_LAYERS)), "")
    Path(layers).write_text(listed)
    return {"error": "", "version": trt.__version__}


def _one_line(errors: list[str]) -> str:
    return " ".join(errors[-1].split())[:400] if errors else "no reason was given"


def _print(lines: list[str]) -> None:
    for line in dict.fromkeys(lines):
        print(line)  # what a child prints is its log
