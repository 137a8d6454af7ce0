"""What every peer does in its process: the float forward, then its calibration and its emitted model, timed alike.

What this imports must be in every environment: NumPy, ONNX Runtime and the standard library.
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
    """CPU seconds, added up over everything that runs inside ``with``; what is nested counts once."""

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


# The request (model, data, method, output), the samples, and the stopwatch for the calibration alone.
Quantize = Callable[[Mapping[str, Any], Feeds, Stopwatch], None]


def measure(request: Mapping[str, Any], quantize: Quantize, version: str) -> dict[str, Any]:
    """Time one way of quantizing between two float forwards of the same samples, and take its peak memory."""
    with np.load(request["data"]) as arrays:
        name, array = next((key, arrays[key]) for key in arrays.files)
    feeds = [{name: array[index : index + 1]} for index in range(len(array))]
    at_least = float(request["float_seconds"])
    before = forward_seconds(request["model"], feeds, at_least)
    calibration, whole = Stopwatch(), Stopwatch()
    with whole:
        quantize(request, feeds, calibration)
    peak = peak_bytes()
    after = forward_seconds(request["model"], feeds, at_least)
    return {
        "version": version,
        "peak_bytes": peak,
        "float_s": (before + after) / 2,
        "calibrate_s": calibration.seconds,
        "whole_s": whole.seconds,
    }


def forward_seconds(model: str, feeds: Feeds, at_least: float) -> float:
    """CPU seconds of the plain float forward over the samples, the session's creation left out.

    Small models are run again until ``at_least`` so many seconds are spent.
    """
    session = onnxruntime.InferenceSession(model, single_threaded(), providers=["CPUExecutionProvider"])
    session.run(None, feeds[0])
    watch, rounds = Stopwatch(), 0
    while watch.seconds < at_least:
        with watch:
            for feed in feeds:
                session.run(None, feed)
        rounds += 1
    return watch.seconds / rounds


def single_threaded() -> onnxruntime.SessionOptions:
    """Session options with one thread and no chatter."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options
