"""Load encodings into an aimet-onnx ``QuantizationSimModel`` and run it, in aimet-onnx's own Python environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aimet_onnx
import numpy as np
import onnx
from aimet_onnx import QuantizationSimModel
from aimet_onnx.quantsim import load_encodings_to_sim

from bench.child import run_request

# AIMET's configuration for HTP: no quantizer between fused operators, as in the files.
CONFIG = Path(aimet_onnx.__file__).parent / "common" / "quantsim_config" / "htp_quantsim_config_v73.json"


def simulate(request: Mapping[str, Any]) -> dict[str, str]:
    """Tensors without an entry are not quantized."""
    model = onnx.load(request["model"])
    names = [output.name for output in model.graph.output]
    sim = QuantizationSimModel(model, param_type="int8", activation_type="int16", config_file=str(CONFIG))
    load_encodings_to_sim(sim, request["encodings"], strict=False)
    outputs = {}
    with np.load(request["inputs"]) as samples:
        name = samples.files[0]
        for number in range(len(samples[name])):
            arrays = sim.session.run(None, {name: samples[name][number : number + 1]})
            outputs |= {f"{output}:{number}": array for output, array in zip(names, arrays, strict=True)}
    np.savez(request["outputs"], **outputs)
    return {"version": f"aimet-onnx {aimet_onnx.__version__}"}


if __name__ == "__main__":
    run_request(simulate)
