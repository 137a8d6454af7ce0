"""ONNX Runtime sessions, in the three ways in which the line runs a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
        # This one merges two pairs of the same type in a row even so, and a planned conversion is lost.
        options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    if mode is Mode.DEPLOYED:
        # On x86 without VNNI the 8-bit kernels saturate their 16-bit sums: 15.6 dB instead of 33.4 on a shipped ViT.
        options.add_session_config_entry("session.x64quantprecision", "1")
    if optimized_to is not None:
        options.optimized_model_filepath = str(optimized_to)
    source = str(model) if isinstance(model, Path) else model
    # Between integer neighbours, the first would quantize weights that the plan keeps in float. The second folds a Pad
    # of zeros into a MaxPool, which does not pad with zeros; what is deployed has no such Pad (passes/keep_padding.py).
    disabled = ["WeightBiasQuantization"] if mode is Mode.DEPLOYED else ["Pad_Fusion"]
    with runtime_errors(f"load {model.name if isinstance(model, Path) else 'the model'}"):
        return onnxruntime.InferenceSession(
            source, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
        )


def run_session(session: Any, feed: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs of one call, by name."""
    names = [output.name for output in session.get_outputs()]
    wanted = {value.name for value in session.get_inputs()}
    with runtime_errors("run the model"):
        outputs = session.run(names, {name: array for name, array in feed.items() if name in wanted})
    return dict(zip(names, outputs, strict=True))


@contextmanager
def runtime_errors(doing: str) -> Iterator[None]:
    """What ONNX Runtime raises in this block, whose exceptions have no common base, as one sentence of ours."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    failures = (state.EPFail, state.Fail, state.InvalidArgument, state.InvalidGraph, state.InvalidProtobuf)
    try:
        yield
    except (*failures, state.NoSuchFile, state.NotImplemented, state.RuntimeException, RuntimeError) as error:
        raise BackendError(f"ONNX Runtime cannot {doing}: {' '.join(str(error).split())[:400]}") from error
