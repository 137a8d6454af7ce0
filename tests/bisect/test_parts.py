"""Parts of a model have the values that their inputs have in the whole model, and Q and DQ nodes stay with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from dovetail.bisect.parts import divided
from dovetail.errors import InputError
from dovetail.model.session import Mode, open_session, run_session
from dovetail.model.write import write

FLOAT = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,4] x) => (float[1,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
{ [one] a = Relu(x)  [two] b = MatMul(a, w)  [three] c = Sigmoid(a)  [four] y = Mul(b, c) }"""
QDQ = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,4] x) => (float[1,4] y) <float s = {0.02}, uint8 z = {128}>
{ [one] a = Relu(x)  q = QuantizeLinear(a, s, z)  d = DequantizeLinear(q, s, z)  [two] b = Sigmoid(d)
  r = QuantizeLinear(b, s, z)  e = DequantizeLinear(r, s, z)  [three] y = Tanh(e) }"""
SAMPLES = [{"x": np.array([[0.5, -1, 2, 0.1]], np.float32)}, {"x": np.array([[1, 1, -3, 0.2]], np.float32)}]


def _file(text: str, folder: Path) -> Path:
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


def test_every_part_computes_what_the_whole_model_does(tmp_path: Path) -> None:
    whole = divided(_file(FLOAT, tmp_path), {}, SAMPLES)
    assert whole.elements == (0, 1, 2, 3)
    part, values = whole.part((2, 3))
    assert [node.op_type for node in part.graph] == ["Sigmoid", "Mul"]
    assert sorted(values) == ["a", "b"]
    session = open_session(write(part, tmp_path / "part.onnx")[0], Mode.FLOAT)
    for row, sample in enumerate(SAMPLES):
        outputs = run_session(session, {name: array[row] for name, array in values.items()})
        expected = run_session(open_session(tmp_path / "m.onnx", Mode.FLOAT), sample)
        np.testing.assert_array_equal(outputs["y"], expected["y"])


def test_conversions_belong_to_their_neighbors(tmp_path: Path) -> None:
    whole = divided(_file(QDQ, tmp_path), {}, SAMPLES)
    assert whole.described(whole.elements) == [("Relu", "one"), ("Sigmoid", "two"), ("Tanh", "three")]
    part, values = whole.part(whole.elements[1:2])
    operators = [node.op_type for node in part.graph]
    assert operators == ["QuantizeLinear", "DequantizeLinear", "Sigmoid", "QuantizeLinear", "DequantizeLinear"]
    assert list(values) == ["a"]
    assert [value.name for value in part.graph.outputs] == ["e"]


def test_connected_parts_share_a_tensor_and_not_only_a_weight(tmp_path: Path) -> None:
    text = FLOAT.replace("[three] c = Sigmoid(a)", "[three] c = MatMul(x, w)")
    whole = divided(_file(text, tmp_path), {}, SAMPLES)
    assert whole.connected((1, 2)) == [(1,), (2,)]
    assert whole.connected((1, 2, 3)) == [(1, 2, 3)]
    assert whole.connected((0, 1)) == [(0, 1)]


def test_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"m\.onnx"):
        divided(tmp_path / "m.onnx", {}, SAMPLES)
