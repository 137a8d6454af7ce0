"""ONNX Runtime sessions, in the three modes in which graphs are run."""

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

    ``FLOAT``: all optimizations. ``EXACT``: every QuantizeLinear and DequantizeLinear is computed as ONNX defines it,
    with all other optimizations. ``DEPLOYED``: as ONNX Runtime runs it by default, with integer kernels.
    """

    FLOAT = "float"
    EXACT = "exact"
    DEPLOYED = "deployed"


def open_session(model: Path | bytes, mode: Mode, *, threads: int = 1, optimized_to: Path | None = None) -> Any:
    """An inference session on the CPU; single-threaded by default, so that results are reproducible."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if mode is Mode.EXACT:
        # Without this, level "basic" moves Q/DQ nodes and "extended" fuses onto float8: 17.6 dB off at W8A8.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # Even then, this optimizer merges consecutive Q/DQ pairs of the same type, and a planned conversion is lost.
        options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    if mode is Mode.DEPLOYED:
        # On x86 without VNNI the 8-bit kernels saturate their 16-bit sums: 15.6 dB instead of 33.4 on a shipped ViT.
        options.add_session_config_entry("session.x64quantprecision", "1")
    if optimized_to is not None:
        options.optimized_model_filepath = str(optimized_to)
    source = str(model) if isinstance(model, Path) else model
    # Between quantized nodes, WeightBiasQuantization would quantize weights that the plan keeps in float. Pad_Fusion
    # folds a Pad of zeros into a MaxPool, which does not pad with zeros; deployed graphs have no such Pad
    # (passes/protect_pad_from_fusion.py).
    disabled = ["WeightBiasQuantization"] if mode is Mode.DEPLOYED else ["Pad_Fusion"]
    if mode is Mode.EXACT:
        # Before a QuantizeLinear to float8, the first fails to load a Clip, and the second removes a Relu.
        disabled += ["ClipQuantRewrite", "ReluQuantRewrite"]
    with runtime_errors(f"load {model.name if isinstance(model, Path) else 'the model'}"):
        return onnxruntime.InferenceSession(
            source, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
        )


def run_session(session: Any, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Run the session once and return all outputs by name."""
    names = [output.name for output in session.get_outputs()]
    input_names = {value.name for value in session.get_inputs()}
    with runtime_errors("run the model"):
        outputs = session.run(names, {name: array for name, array in feed.items() if name in input_names})
    return dict(zip(names, outputs, strict=True))


@contextmanager
def runtime_errors(action: str) -> Iterator[None]:
    """Raise a one-line BackendError for any error of ONNX Runtime, whose exceptions have no common base class.

    ``action`` completes "ONNX Runtime cannot ...": for example ``run the model``.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    failures = (state.EPFail, state.Fail, state.InvalidArgument, state.InvalidGraph, state.InvalidProtobuf)
    try:
        yield
    except (*failures, state.NoSuchFile, state.NotImplemented, state.RuntimeException, RuntimeError) as error:
        raise BackendError(f"ONNX Runtime cannot {action}: {' '.join(str(error).split())[:400]}") from error
