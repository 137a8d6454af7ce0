"""Measure one of the quantizers compared, in its own process: time of float inference, calibration, quantization.

Imports only NumPy, ONNX Runtime and the standard library, because the environment of every quantizer has to import it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime

from bench.child import peak_bytes

Feeds = list[dict[str, np.ndarray]]


@dataclass
class Stopwatch:
    """Sums the CPU seconds of all ``with`` blocks that use it; nested blocks count once."""

    seconds: float = 0.0
    _depth: int = field(default=0, repr=False)

    def __enter__(self) -> Stopwatch:
        if not self._depth:
            self.seconds -= time.process_time()
        self._depth += 1
        return self

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.seconds += time.process_time()


# Arguments: the request (model, data, method, output), the samples, and the stopwatch that times only the calibration.
Quantize = Callable[[Mapping[str, Any], Feeds, Stopwatch], None]


def measure(request: Mapping[str, Any], quantize: Quantize, version: str) -> dict[str, Any]:
    """Time one quantization between two float inference runs on the same samples, and record its peak memory."""
    with np.load(request["data"]) as arrays:
        name, array = next((key, arrays[key]) for key in arrays.files)
    feeds = [{name: array[index : index + 1]} for index in range(len(array))]
    min_seconds = float(request["float_seconds"])
    before = inference_seconds(request["model"], feeds, min_seconds)
    calibration, total = Stopwatch(), Stopwatch()
    with total:
        quantize(request, feeds, calibration)
    peak = peak_bytes()
    after = inference_seconds(request["model"], feeds, min_seconds)
    return {
        "version": version,
        "peak_bytes": peak,
        "float_s": (before + after) / 2,
        "calibrate_s": calibration.seconds,
        "total_s": total.seconds,
    }


def inference_seconds(model: str, feeds: Feeds, min_seconds: float) -> float:
    """CPU seconds of float inference over all samples, without session creation.

    The samples are run again until ``min_seconds`` have been spent, and the mean per round is returned.
    """
    session = onnxruntime.InferenceSession(model, single_threaded(), providers=["CPUExecutionProvider"])
    session.run(None, feeds[0])
    watch, rounds = Stopwatch(), 0
    while watch.seconds < min_seconds:
        with watch:
            for feed in feeds:
                session.run(None, feed)
        rounds += 1
    return watch.seconds / rounds


def single_threaded() -> onnxruntime.SessionOptions:
    """Session options with one thread and only errors logged."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options
