"""Q112: every type that the rule names is rejected by the parser, as activation and as weight."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import dovetail
from dovetail.backend import Artifact
from dovetail.targets import open_target

pytest.importorskip("tensorrt_rtx", reason="needs the package tensorrt-rtx-cu12")

TYPES = ("FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ", "INT2")


def linear_layer(dtype: str, *, weight_only: bool) -> onnx.ModelProto:
    """A MatMul by a weight of this type, beside an activation of the same type or in float."""
    number, helper = onnx.TensorProto.DataType.Value(dtype), onnx.helper
    zero = helper.make_tensor("z", number, [], [0])
    weight = helper.make_tensor("w", number, [16, 16], [i % 3 - 1 for i in range(256)])
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["w_dq"])]
    if not weight_only:
        nodes += [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["x_q"]),
            helper.make_node("DequantizeLinear", ["x_q", "s", "z"], ["x_dq"]),
        ]
    nodes.append(helper.make_node("MatMul", ["x" if weight_only else "x_dq", "w_dq"], ["y"]))
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [32, 16]) for name in "xy")
    scale = helper.make_tensor("s", onnx.TensorProto.FLOAT, [], [0.05])
    graph = helper.make_graph(nodes, "linear", [x], [y], [scale, zero, weight])
    opset, ir_version = (25, 13) if dtype == "INT2" else (21, 10)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


@pytest.mark.parametrize("weight_only", [False, True], ids=["activation", "weight"])
@pytest.mark.parametrize("dtype", TYPES)
def test_the_parser_rejects_the_type(dtype: str, weight_only: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(linear_layer(dtype, weight_only=weight_only), path)
    assert {finding.code for finding in dovetail.check(path, target="tensorrt")} == {"Q112"}
    (tmp_path / "built").mkdir()
    error = open_target("tensorrt").backend.compile((Artifact("model", path),), tmp_path / "built").error
    assert "Failed to import initializer" in error
