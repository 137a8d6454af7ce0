"""ONNX Runtime sessions, in the three ways in which the line runs a graph."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from dovetail.encoding import Array
from dovetail.errors import BackendError


class Mode(StrEnum):
    """How a graph is run.

    ``FLOAT``: all optimizations. ``EXACT``: every QuantizeLinear and DequantizeLinear does what ONNX says, all other
    optimizations on. ``DEPLOYED``: as ONNX Runtime ships it, integer kernels included.
    """

    FLOAT = "float"
    EXACT = "exact"
    DEPLOYED = "deployed"


def open_session(model: Path | bytes, mode: Mode, *, threads: int = 1, optimized_to: Path | None = None) -> Any:
    """An inference session on the CPU; single-threaded unless told, so that figures repeat."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if mode is Mode.EXACT:
        # Without this, level "basic" moves Q/DQ nodes and "extended" fuses onto float8: 17.6 dB off at W8A8.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    if mode is Mode.DEPLOYED:
        # On x86 without VNNI the 8-bit kernels saturate their 16-bit sums: 15.6 dB instead of 33.4 on a shipped ViT.
        options.add_session_config_entry("session.x64quantprecision", "1")
    if optimized_to is not None:
        options.optimized_model_filepath = str(optimized_to)
    source = str(model) if isinstance(model, Path) else model
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except _runtime_errors() as error:
        name = model.name if isinstance(model, Path) else "the model"
        raise BackendError(f"ONNX Runtime cannot load {name}: {_sentence(error)}") from error


def run_session(session: Any, feed: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs of one call, by name."""
    names = [output.name for output in session.get_outputs()]
    wanted = {value.name for value in session.get_inputs()}
    try:
        outputs = session.run(names, {name: array for name, array in feed.items() if name in wanted})
    except _runtime_errors() as error:
        raise BackendError(f"ONNX Runtime cannot run the model: {_sentence(error)}") from error
    return dict(zip(names, outputs, strict=True))


def _runtime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises; its exceptions have no common base."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented, state.RuntimeException)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
