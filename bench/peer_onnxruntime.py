"""``onnxruntime.quantization.quantize_static`` as one of the peers: QDQ, weights int8, activations uint8."""

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

from bench.child import reply
from bench.peer import Feeds, Stopwatch, measure, single_threaded

# As its guide for x86 says, weights per channel; "defaults" is what a caller gets who sets nothing.
_CHOSEN: dict[str, Any] = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
METHODS: dict[str, dict[str, Any]] = {
    "MinMax": {**_CHOSEN, "calibrate_method": CalibrationMethod.MinMax},
    "MinMax reduce_range": {**_CHOSEN, "calibrate_method": CalibrationMethod.MinMax, "reduce_range": True},
    "Percentile": {**_CHOSEN, "calibrate_method": CalibrationMethod.Percentile},
    "Entropy": {**_CHOSEN, "calibrate_method": CalibrationMethod.Entropy},
    "defaults": {},
}


class Reader(CalibrationDataReader):
    """Samples, one after another."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def quantize(request: Mapping[str, Any], feeds: Feeds, calibration: Stopwatch) -> None:
    """Its recommended preparation, then one call; calibration is what its calibrators spend on data and ranges."""
    _time_calibrators(calibration)
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(request["model"], prepared)
        quantize_static(
            prepared, request["output"], Reader(feeds), quant_format=QuantFormat.QDQ, **METHODS[request["method"]]
        )


def _time_calibrators(watch: Stopwatch) -> None:
    """Time the steps of its calibrators from outside, and hold their sessions to one thread as everyone else's."""
    calibrators.CalibraterBase.create_inference_session = _create_session
    for calibrator in (calibrators.MinMaxCalibrater, calibrators.HistogramCalibrater):
        for step in ("collect_data", "compute_data"):
            setattr(calibrator, step, _timed(getattr(calibrator, step), watch))


def _timed(step: Callable[..., Any], watch: Stopwatch) -> Callable[..., Any]:
    @functools.wraps(step)
    def timed(*arguments: Any, **named: Any) -> Any:
        with watch:
            return step(*arguments, **named)

    return timed


def _create_session(calibrator: calibrators.CalibraterBase) -> None:
    """As the method that this stands for, but with one thread."""
    options = single_threaded()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    path, providers = str(calibrator.augmented_model_path), calibrator.execution_providers
    calibrator.infer_session = onnxruntime.InferenceSession(path, options, providers=providers)


if __name__ == "__main__":
    reply(lambda request: measure(request, quantize, onnxruntime.__version__))
