"""The shipped digits ViT by ONNX Runtime's own quantizer: pairs around every operator that it knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime import quantization

from dovetail import zoo

SAMPLES = 8


def calibration() -> dict[str, np.ndarray]:
    """The samples that the other tool saw."""
    return {"images": zoo.load("vit_digits").calib()["images"][:SAMPLES]}


def quantized_elsewhere(path: Path, *, signed: bool) -> Path:
    """int8 and symmetric, or uint8 with zero points, which is what a caller gets who sets nothing."""
    extra: dict[str, Any] = {"ActivationSymmetric": True, "QuantizeBias": False} if signed else {}
    quantization.quantize_static(
        str(zoo.load("vit_digits").model_path),
        str(path),
        _Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QInt8 if signed else quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        extra_options=extra,
    )
    return path


class _Reader(quantization.CalibrationDataReader):
    def __init__(self) -> None:
        images = calibration()["images"]
        self._samples: Iterator[dict[str, np.ndarray]] = iter([{"images": image[None]} for image in images])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)
