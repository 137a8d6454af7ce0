"""Float samples and outputs of a graph whose inputs and outputs are quantized."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.encoding import DType, Encoding, QParams
from dovetail.model.session import Mode, open_session
from dovetail.model.write import serialized
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.quantized_io import RunSamples, with_float_io
from tests.equality import model_from, normal
from tests.qdq.round_trip import plan_of

A8 = QParams(Encoding(DType.U8), np.float32(0.05), np.int32(120))
B8 = QParams(Encoding(DType.S8), np.float32(0.11), np.int32(-7))


def _run(model: ir.Model) -> RunSamples:
    session = open_session(serialized(model), Mode.EXACT)
    names = [output.name for output in session.get_outputs()]

    def run(samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            yield dict(zip(names, session.run(names, dict(sample)), strict=True))

    return run


def test_a_graph_with_quantized_io_gives_the_float_outputs_of_one_without() -> None:
    model = model_from("g (float[4] x, float[4] raw) => (float[4] y, float[4] n) { y = Add(x, raw) n = Neg(y) }")
    float_io = plan_of({"x": A8, "y": B8})
    integer_io = replace(float_io, quantized_io=True)
    samples = [{"x": normal(4, seed=seed), "raw": normal(4, seed=seed + 9)} for seed in range(3)]
    expected = list(with_float_io(_run(emit_qdq(model, float_io)), float_io)(samples))
    actual = list(with_float_io(_run(emit_qdq(model, integer_io)), integer_io)(samples))
    for expected_outputs, outputs in zip(expected, actual, strict=True):
        assert expected_outputs.keys() == outputs.keys() == {"y", "n"}
        for name, array in expected_outputs.items():
            assert array.tobytes() == outputs[name].tobytes()
