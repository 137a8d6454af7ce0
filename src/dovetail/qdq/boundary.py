"""Run a graph with float samples and float outputs, whether or not its own inputs and outputs are quantized."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dovetail.backend import Sample
from dovetail.encoding import Array, QParams
from dovetail.numerics.affine import dequantize, quantize
from dovetail.storage import Plan

Stream = Callable[[Iterable[Sample]], Iterator[Sample]]


def float_stream(stream: Stream, plan: Plan) -> Stream:
    """The same stream with float inputs and outputs: quantized on the way in, dequantized on the way out."""
    if not plan.quantized_io:
        return stream

    def run(samples: Iterable[Sample]) -> Iterator[Sample]:
        for outputs in stream(quantized_sample(sample, plan) for sample in samples):
            yield {name: _real(name, array, plan) for name, array in outputs.items()}

    return run


def quantized_sample(sample: Sample, plan: Plan) -> Sample:
    """A float sample, quantized if the plan has quantized inputs and outputs."""
    if not plan.quantized_io:
        return sample
    return {name: _quantized(name, array, plan) for name, array in sample.items()}


def _quantized(name: str, array: Array, plan: Plan) -> Array:
    params = _params(name, plan)
    return array if params is None else quantize(array, params)


def _real(name: str, array: Array, plan: Plan) -> Array:
    params = _params(name, plan)
    return array if params is None else dequantize(array, params)


def _params(name: str, plan: Plan) -> QParams | None:
    choice = plan.tensors.get(name)
    return choice.storage if choice is not None and isinstance(choice.storage, QParams) else None
