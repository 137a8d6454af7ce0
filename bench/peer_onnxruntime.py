"""``quantize_static`` of onnxruntime, one of the quantizers compared: QDQ, int8 weights, uint8 activations."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization import calibrate as calibrators
from onnxruntime.quantization.shape_inference import quant_pre_process

from bench.child import run_request
from bench.peer import Feeds, Stopwatch, measure, single_threaded

# ONNX Runtime's guide recommends these for x86, with per-channel weights; "defaults" passes no settings at all.
_RECOMMENDED: dict[str, Any] = {
    "activation_type": QuantType.QUInt8,
    "weight_type": QuantType.QInt8,
    "per_channel": True,
}
METHODS: dict[str, dict[str, Any]] = {
    "MinMax": {**_RECOMMENDED, "calibrate_method": CalibrationMethod.MinMax},
    "MinMax reduce_range": {**_RECOMMENDED, "calibrate_method": CalibrationMethod.MinMax, "reduce_range": True},
    "Percentile": {**_RECOMMENDED, "calibrate_method": CalibrationMethod.Percentile},
    "Entropy": {**_RECOMMENDED, "calibrate_method": CalibrationMethod.Entropy},
    "defaults": {},
}


class Reader(CalibrationDataReader):
    """Gives the calibrator one sample per call."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def quantize(request: Mapping[str, Any], feeds: Feeds, calibration: Stopwatch) -> None:
    """Run the recommended pre-processing, then ``quantize_static``; only its calibrators count as calibration."""
    _time_calibrators(calibration)
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(request["model"], prepared)
        quantize_static(
            prepared, request["output"], Reader(feeds), quant_format=QuantFormat.QDQ, **METHODS[request["method"]]
        )


def _time_calibrators(watch: Stopwatch) -> None:
    """Patch ONNX Runtime's calibrators so that their steps are timed and their sessions use one thread."""
    calibrators.CalibraterBase.create_inference_session = _create_session
    for calibrator in (calibrators.MinMaxCalibrater, calibrators.HistogramCalibrater):
        for step in ("collect_data", "compute_data"):
            setattr(calibrator, step, _timed(getattr(calibrator, step), watch))


def _timed(step: Callable[..., Any], watch: Stopwatch) -> Callable[..., Any]:
    @functools.wraps(step)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with watch:
            return step(*args, **kwargs)

    return timed


def _create_session(calibrator: calibrators.CalibraterBase) -> None:
    """Replaces ``create_inference_session`` of a calibrator: the same, but with one thread."""
    options = single_threaded()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    path, providers = str(calibrator.augmented_model_path), calibrator.execution_providers
    calibrator.infer_session = onnxruntime.InferenceSession(path, options, providers=providers)


if __name__ == "__main__":
    run_request(lambda request: measure(request, quantize, onnxruntime.__version__))
