"""``aimet-onnx``, one of the quantizers compared, in its own Python environment: W8A8, per-channel weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aimet_onnx
import onnx
from aimet_onnx import QuantizationSimModel

from bench.child import run_request
from bench.peer import Feeds, Stopwatch, measure

CONFIG = Path(aimet_onnx.__file__).parent / "common" / "quantsim_config" / "default_config_per_channel.json"


def quantize(request: Mapping[str, Any], feeds: Feeds, calibration: Stopwatch) -> None:
    """Calibrate a ``QuantizationSimModel`` and export it as QDQ with integer weights.

    A method is one of AIMET's quant schemes, optionally followed by a space and another configuration file.
    """
    scheme, _, config = request["method"].partition(" ")
    sim = QuantizationSimModel(
        onnx.load(request["model"]),
        param_type="int8",
        activation_type="int8",
        quant_scheme=scheme,
        config_file=config or str(CONFIG),
        session_options_kwargs={"intra_op_num_threads": 1, "inter_op_num_threads": 1},
    )
    with calibration:
        sim.compute_encodings(feeds)
    onnx.save(sim.to_onnx_qdq(export_int32_bias=True, prequantize_constants=True), request["output"])


if __name__ == "__main__":
    run_request(lambda request: measure(request, quantize, aimet_onnx.__version__))
