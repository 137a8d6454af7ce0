"""What is read from an ONNX file: names, origins, opset, shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from dovetail.errors import InputError
from dovetail.model.known_ops import newest_opset
from dovetail.model.origin import origin_of
from dovetail.model.read import read
from dovetail.model.suggest_shapes import require_static
from tests.model.model_files import LINEAR, WEIGHTS, check_refused, save, save_external


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    return save(tmp_path / "m.onnx", LINEAR, **WEIGHTS)


def test_reads_names_origins_opset_and_input_shape(linear: Path) -> None:
    model = read(linear, {"x": (2, 3)})
    assert model.opset_imports[""] == 21
    assert model.graph.inputs[0].shape == ir.Shape([2, 3])
    assert [node.name for node in model.graph] == ["MatMul/a", "Add/y"]
    assert [origin_of(node.outputs[0]).name for node in model.graph] == ["a", "y"]
    assert set(model.graph.initializers) == {"w", "b"}
    require_static(model)


def test_file_is_not_changed(linear: Path) -> None:
    before = linear.read_bytes()
    read(linear, {"x": (2, 3)})
    assert linear.read_bytes() == before


def test_relative_path_is_read_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_external(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert len(read("m.onnx").graph) == 2


def test_unnamed_nodes_and_repeated_names(tmp_path: Path) -> None:
    text = "g (float[3] x) => (float[3] y) { [n] a = Neg(x) [n] b = Neg(a) c = Neg(b) d = Neg(c) y = Neg(d) }"
    path = save(tmp_path / "m.onnx", text)
    proto = onnx.load(path)
    proto.graph.node[3].name = "n.1"
    path.write_bytes(proto.SerializeToString())
    assert [node.name for node in read(path).graph] == ["n", "n.2", "Neg/c", "n.1", "Neg/y"]


def test_initializers_listed_as_inputs_are_constants(tmp_path: Path) -> None:
    text = "g (float[2,3] x, float[3,4] w) => (float[2,4] y) { y = MatMul(x, w) }"
    model = read(save(tmp_path / "m.onnx", text, w=WEIGHTS["w"]))
    assert [value.name for value in model.graph.inputs] == ["x"]


def test_inlined_functions_have_origins_in_the_file(tmp_path: Path) -> None:
    text = """g (float[3] x) => (float[3] y) { a = my.twice(x) y = my.twice(a) }
        <domain: "my", opset_import: ["": 17]> twice (p) => (q) { r = ReduceMean<axes=[0]>(p) q = Add(p, r) }"""
    model = read(save(tmp_path / "m.onnx", text, more=', "my": 1'))
    assert [node.op_type for node in model.graph if node.op_type != "Constant"] == ["ReduceMean", "Add"] * 2
    names = {"x", "y", "a", "p", "q", "r"}
    assert all(origin_of(value).name in names for node in model.graph for value in node.outputs)


def test_values_added_by_the_opset_conversion_have_their_consumer_as_origin(tmp_path: Path) -> None:
    text = "g (float[2,3] x) => (float[2,1] y) { y = ReduceMean<axes=[1]>(x) }"
    model = read(save(tmp_path / "m.onnx", text, opset=11))
    axes = model.graph.node(-1).inputs[1]
    assert axes is not None
    assert origin_of(axes).name == "y"
    assert not origin_of(axes).exact


def test_unsorted_graph_is_sorted(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "g (float[3] x) => (float[3] y) { a = Neg(x) y = Abs(a) }")
    proto = onnx.load(path)
    nodes = list(reversed(proto.graph.node))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    path.write_bytes(proto.SerializeToString())
    assert [node.op_type for node in read(path).graph] == ["Neg", "Abs"]


def test_contrib_operator_is_read(tmp_path: Path) -> None:
    text = "g (float[3] x) => (float[3] y) { y = com.microsoft.BiasSoftmax<axis = 0, is_inner_broadcast = 0>(x, x) }"
    assert [n.op_type for n in read(save(tmp_path / "m.onnx", text, more=', "com.microsoft": 1')).graph] == [
        "BiasSoftmax"
    ]


def test_onnx_domain_written_as_ai_onnx(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "g (float[3] x) => (float[3] y) { y = Neg(x) }")
    proto = onnx.load(path)
    proto.opset_import[0].domain = proto.graph.node[0].domain = "ai.onnx"
    path.write_bytes(proto.SerializeToString())
    assert read(path).graph.node(0).domain == ""


@pytest.mark.parametrize("opset", range(11, newest_opset() + 1))
def test_every_opset_in_range(tmp_path: Path, opset: int) -> None:
    text = "g (float[3] x) => (float[3] y) { y = Neg(x) }"
    assert read(save(tmp_path / "m.onnx", text, opset=opset)).opset_imports[""] == max(opset, 21)


def test_shared_dimension_is_set_in_the_other_input(tmp_path: Path) -> None:
    text = "g (float[batch,3] x, float[batch,n] z) => (float[batch,4] y) { y = MatMul(x, w) }"
    model = read(save(tmp_path / "m.onnx", text, w=WEIGHTS["w"]), {"x": (2, 3)})
    assert str(model.graph.inputs[1].shape) == "[2,n]"


def test_placeholder_sizes_of_exporters_are_unknown(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "g (float[h,w] x) => (float[h,w] y) { y = Neg(x) }")
    proto = onnx.load(path)
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_param = dims[1].dim_param = "?"
    path.write_bytes(proto.SerializeToString())
    assert read(path, {"x": (2, 3)}).graph.inputs[0].shape == ir.Shape([2, 3])
    dims[0].dim_value = -1
    path.write_bytes(proto.SerializeToString())
    assert read(path, {"x": (2, 3)}).graph.inputs[0].shape == ir.Shape([2, 3])


@pytest.mark.parametrize(
    ("name", "shape", "match"),
    [
        ("z", (2, 3), "no input 'z'; its inputs are x"),
        ("x", (2, 3, 1), "expected 2 dimensions"),
        ("x", (2, 5), "dimension 1 is fixed at 3 in the model"),
        ("x", (0, 3), "below 1"),
    ],
)
def test_wrong_shape(linear: Path, name: str, shape: tuple[int, ...], match: str) -> None:
    check_refused(match, linear, **{name: shape})


def test_shapes_that_disagree_on_a_shared_dimension(tmp_path: Path) -> None:
    text = "g (float[batch] x, float[batch] z) => (float[batch] y) { y = Add(x, z) }"
    message = r"dimension 0 \('batch'\) is 3 here, but 2 elsewhere; all dimensions named 'batch' must be equal"
    check_refused(message, save(tmp_path / "m.onnx", text), x=(2,), z=(3,))


def test_symbolic_shape_is_read_but_not_static(linear: Path) -> None:
    match = r"'x' has no static shape \(batch,3\); set it, for example with --shape x=1,3$"
    with pytest.raises(InputError, match=match):
        require_static(read(linear))


def test_missing_optional_input_is_read(tmp_path: Path) -> None:
    text = 'g (float[3,3] x) => (float[3,3] y) { y = Clip(x, "", high) }'
    assert len(read(save(tmp_path / "m.onnx", text, high=np.float32(1))).graph) == 1
