"""The TensorRT-RTX builder, called in a child process: parse, build ahead of time, write the engine and its layers."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

_LAYERS = "Layers:"
# The builder waits forever for a thread of its own whose allocation failed, so it is stopped this far below the limit.
_HEADROOM_BYTES = 64 << 20
_POLL_S = 0.02
_OUT_OF_MEMORY = "std::bad_alloc"


def _watch_memory() -> None:
    """End the process with an error message when its address space comes close to the limit."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit either
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
    messages: list[tuple[Any, str]] = []

    class Logger(trt.ILogger):  # type: ignore[misc]
        """Keeps the builder's messages, in order."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            messages.append((severity, message))

    logger = Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(model):
        errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        return {"error": f"the parser rejects the model: {_one_line(errors)}", "version": trt.__version__}
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{sm}"), 0)
    serialized = builder.build_serialized_network(network, config)
    errors = [text for severity, text in messages if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)]
    _print([text for severity, text in messages if severity == trt.ILogger.WARNING] + errors)
    if serialized is None:
        if any(_OUT_OF_MEMORY in text for text in errors):  # in a thread that does not stop the builder
            raise MemoryError(_one_line(errors))
        return {"error": f"the builder rejects the model: {_one_line(errors)}", "version": trt.__version__}
    Path(engine).write_bytes(bytes(serialized))
    layer_list = next((text for _, text in messages if text.lstrip().startswith(_LAYERS)), "")
    Path(layers).write_text(layer_list)
    return {"error": "", "version": trt.__version__}


def _one_line(errors: list[str]) -> str:
    return " ".join(errors[-1].split())[:400] if errors else "no reason was given"


def _print(lines: list[str]) -> None:
    for line in dict.fromkeys(lines):
        print(line)  # the parent keeps what the child prints as its log
