"""A model larger than the 2 GB limit of protobuf; its weight file is sparse, so that it needs no disk space."""

from __future__ import annotations

import resource
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from dovetail.model.read import read
from dovetail.passes.normalize import normalize

ROWS, COLUMNS = 30_000, 20_000
WEIGHT_BYTES = ROWS * COLUMNS * 4


@pytest.fixture
def large(tmp_path: Path) -> Path:
    text = f"""<ir_version: 8, opset_import: ["": 13]> g (float[batch,{ROWS}] x) => (float[batch,{COLUMNS}] y)
        {{ m = ReduceMean<axes=[-1]>(x) c = Sub(x, m) p = MatMul(c, w) i = Identity(p) y = Relu(i) }}"""
    proto = onnx.parser.parse_model(text)
    weight = proto.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[ROWS, COLUMNS])
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.data")
    with (tmp_path / "w.data").open("wb") as file:
        file.truncate(WEIGHT_BYTES)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    return tmp_path / "m.onnx"


def test_weights_are_never_loaded(large: Path) -> None:
    assert WEIGHT_BYTES > 2**31
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model, _ = normalize(read(large, {"x": (1, ROWS)}))
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 500 * 1024
    weight = model.graph.initializers["w"].const_value
    assert isinstance(weight, ir.ExternalTensor)
    assert [node.op_type for node in model.graph] == ["ReduceMean", "Sub", "MatMul", "Relu"]
