"""Quantize one ONNX file with nvidia-modelopt, in its own environment.

``python peer_modelopt.py SOURCE OUTPUT MODE DATA``
"""

from __future__ import annotations

import sys

import numpy as np


def main(source: str, output: str, mode: str, data: str) -> None:
    from modelopt.onnx.quantization import quantize

    with np.load(data) as arrays:
        samples = {name: arrays[name] for name in arrays.files}
    quantize(
        source,
        quantize_mode=mode,
        calibration_data=samples,
        calibration_method="max",
        calibration_eps=["cpu"],
        high_precision_dtype="fp16",
        output_path=output,
        log_level="ERROR",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
