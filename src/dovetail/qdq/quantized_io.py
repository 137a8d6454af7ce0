"""Models with quantized inputs and outputs (``--io quantized``), run with float samples and float outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dovetail.backend import Sample
from dovetail.encoding import Array, QParams
from dovetail.numerics.affine import dequantize, quantize
from dovetail.storage import Plan

# Runs a model: samples -> outputs by name, one sample at a time.
RunSamples = Callable[[Iterable[Sample]], Iterator[Sample]]


def with_float_io(run_model: RunSamples, plan: Plan) -> RunSamples:
    """A function that quantizes float samples, runs the model and dequantizes its outputs, as the plan requires."""
    if not plan.quantized_io:
        return run_model

    def run(samples: Iterable[Sample]) -> Iterator[Sample]:
        for outputs in run_model(quantized_sample(sample, plan) for sample in samples):
            yield {name: _dequantized(name, array, plan) for name, array in outputs.items()}

    return run


def quantized_sample(sample: Sample, plan: Plan) -> Sample:
    """A float sample, quantized if the model has quantized inputs and outputs."""
    if not plan.quantized_io:
        return sample
    return {name: _quantized(name, array, plan) for name, array in sample.items()}


def _quantized(name: str, array: Array, plan: Plan) -> Array:
    params = _params(name, plan)
    return array if params is None else quantize(array, params)


def _dequantized(name: str, array: Array, plan: Plan) -> Array:
    params = _params(name, plan)
    return array if params is None else dequantize(array, params)


def _params(name: str, plan: Plan) -> QParams | None:
    choice = plan.tensors.get(name)
    return choice.storage if choice is not None and isinstance(choice.storage, QParams) else None
