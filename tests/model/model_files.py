"""Small ONNX files for tests of reading."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from dovetail.errors import InputError
from dovetail.model.read import read
from tests.equality import Array, normal

HEAD = '<ir_version: 8, opset_import: ["": {opset}{more}]>'
LINEAR = "g (float[batch,3] x) => (float[batch,4] y) { a = MatMul(x, w) y = Add(a, b) }"
WEIGHTS = {"w": normal(3, 4), "b": normal(4)}


def save(path: Path, text: str, opset: int = 17, more: str = "", **constants: Array) -> Path:
    proto = onnx.parser.parse_model(HEAD.format(opset=opset, more=more) + text)
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path.write_bytes(proto.SerializeToString())
    return path


def save_external(folder: Path) -> Path:
    path = save(folder / "m.onnx", LINEAR, **WEIGHTS)
    proto = onnx.load(path)
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    return path


def relocate(path: Path, location: str) -> None:
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path.write_bytes(proto.SerializeToString())


def check_refused(match: str, path: Path, **shapes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=match) as caught:
        read(path, shapes)
    assert "\n" not in str(caught.value)
