"""The measured process of ``bench.block`` for aimet-onnx, in its own Python environment: int4 weights in LPBQ."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aimet_onnx
import numpy as np
import onnx
from aimet_onnx import QuantizationSimModel
from aimet_onnx.quantsim import set_lpbq_for_params

from bench.child import run_request
from bench.peer_aimet import CONFIG


def child(request: dict[str, Any]) -> Mapping[str, Any]:
    """Quantize a model and write it as QDQ; the seconds are CPU time without reading the float model."""
    model = onnx.load(request["model"])
    samples = [
        {model.graph.input[0].name: np.random.default_rng(1).standard_normal(request["input"]).astype(np.float32)}
    ]
    start = time.process_time()
    sim = QuantizationSimModel(
        model,
        param_type="int8",
        activation_type="int16",
        quant_scheme="min_max",
        config_file=str(CONFIG),
        session_options_kwargs={"intra_op_num_threads": 1, "inter_op_num_threads": 1},
    )
    set_lpbq_for_params(sim, bitwidth=4, block_size=request["block_size"], op_types={"MatMul", "Gemm"})
    sim.compute_encodings(samples)
    output = Path(request["output"])
    onnx.save(sim.to_onnx_qdq(prequantize_constants=True), output)
    seconds = time.process_time() - start
    return {"version": aimet_onnx.__version__, "seconds": seconds, "file_bytes": output.stat().st_size}


if __name__ == "__main__":
    run_request(child)
