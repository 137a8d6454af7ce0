"""ONNX Runtime sessions, in the three ways in which the line runs a graph."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

import onnx_ir as ir


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
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def serialized(model: ir.Model) -> bytes:
    """The model as bytes, for sessions on graphs that fit; larger ones go through a file."""
    return ir.to_proto(model).SerializeToString()
