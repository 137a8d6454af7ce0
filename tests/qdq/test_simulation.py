"""The outputs of the simulation are bit-identical to those of the file that ships."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.edge import Edge
from dovetail.encoding import DType, Encoding, Granularity, QParams
from dovetail.model.session import Mode, open_session
from dovetail.model.write import serialized, write
from dovetail.qdq.emit import emit_qdq
from dovetail.qdq.simulation import load_simulation
from tests.equality import model_from, normal
from tests.qdq.round_trip import plan_of
from tests.qdq.shipped import images, planned


@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
def test_bit_equal_to_the_emitted_file(precision: str, tmp_path: Path) -> None:
    model, plan = planned(precision)
    (path,) = write(emit_qdq(model, plan), tmp_path / "model.onnx")
    simulation = load_simulation(path)
    shipped, simulated = open_session(path, Mode.EXACT), open_session(serialized(simulation), Mode.EXACT)
    for sample in images(8):
        for expected, output in zip(shipped.run(None, sample), simulated.run(None, sample), strict=True):
            assert expected.tobytes() == output.tobytes()
    ops = [node.op_type for node in simulation.graph]
    assert ops.count("DequantizeLinear") == ops.count("QuantizeLinear")
    assert not any(name.endswith("__q") for name in simulation.graph.initializers)


def test_a_quantized_constant_as_an_output(tmp_path: Path) -> None:
    params = QParams(Encoding(DType.S4, True, Granularity.BLOCK, 2), np.full((3, 4), 0.1), np.zeros((3, 4)), 0)
    model = model_from(
        "g (float[6,4] x) => (float[6,4] y, float[6,4] w) { [i] w = Identity(W) [a] y = Add(x, W) }", W=normal(6, 4)
    )
    (path,) = write(emit_qdq(model, plan_of({}, {Edge("i", 0): params, Edge("a", 1): params})), tmp_path / "m.onnx")
    feed = {"x": normal(6, 4, seed=1)}
    simulated = open_session(serialized(load_simulation(path)), Mode.EXACT).run(None, feed)
    for expected, output in zip(open_session(path, Mode.EXACT).run(None, feed), simulated, strict=True):
        assert expected.tobytes() == output.tobytes()
