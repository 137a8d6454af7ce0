from __future__ import annotations

import os
from collections.abc import Callable
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
from tests.equality import Array, normal, run

HEAD = '<ir_version: 8, opset_import: ["": {opset}{more}]>'
LINEAR = "g (float[batch,3] x) => (float[batch,4] y) { a = MatMul(x, w) y = Add(a, b) }"
WEIGHTS = {"w": normal(3, 4), "b": normal(4)}


def _save(path: Path, text: str, opset: int = 17, more: str = "", **constants: Array) -> Path:
    proto = onnx.parser.parse_model(HEAD.format(opset=opset, more=more) + text)
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path.write_bytes(proto.SerializeToString())
    return path


def _save_external(folder: Path) -> Path:
    path = _save(folder / "m.onnx", LINEAR, **WEIGHTS)
    proto = onnx.load(path)
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    return path


def _relocate(path: Path, location: str) -> None:
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path.write_bytes(proto.SerializeToString())


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    return _save(tmp_path / "m.onnx", LINEAR, **WEIGHTS)


def _check_refused(match: str, path: Path, **shapes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=match) as caught:
        read(path, shapes)
    assert "\n" not in str(caught.value)


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


def test_external_data_is_found(tmp_path: Path) -> None:
    model = read(_save_external(tmp_path), {"x": (1, 3)})
    x = normal(1, 3)
    np.testing.assert_allclose(run(model, {"x": x})["y"], x @ WEIGHTS["w"] + WEIGHTS["b"], rtol=1e-5)


def test_large_weight_stays_in_its_file_through_conversion(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", LINEAR.replace("4", "400"), opset=11, w=normal(3, 400), b=normal(400))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.data", size_threshold=0)
    model = read(path)
    assert isinstance(model.graph.initializers["w"].const_value, ir.ExternalTensor)


def test_relative_path_is_read_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save_external(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert len(read("m.onnx").graph) == 2


def test_unnamed_nodes_and_repeated_names(tmp_path: Path) -> None:
    text = "g (float[3] x) => (float[3] y) { [n] a = Neg(x) [n] b = Neg(a) c = Neg(b) d = Neg(c) y = Neg(d) }"
    path = _save(tmp_path / "m.onnx", text)
    proto = onnx.load(path)
    proto.graph.node[3].name = "n.1"
    path.write_bytes(proto.SerializeToString())
    assert [node.name for node in read(path).graph] == ["n", "n.2", "Neg/c", "n.1", "Neg/y"]


def test_initializers_listed_as_inputs_are_constants(tmp_path: Path) -> None:
    text = "g (float[2,3] x, float[3,4] w) => (float[2,4] y) { y = MatMul(x, w) }"
    model = read(_save(tmp_path / "m.onnx", text, w=WEIGHTS["w"]))
    assert [value.name for value in model.graph.inputs] == ["x"]


def test_inlined_functions_have_origins_in_the_file(tmp_path: Path) -> None:
    text = """g (float[3] x) => (float[3] y) { a = my.twice(x) y = my.twice(a) }
        <domain: "my", opset_import: ["": 17]> twice (p) => (q) { r = ReduceMean<axes=[0]>(p) q = Add(p, r) }"""
    model = read(_save(tmp_path / "m.onnx", text, more=', "my": 1'))
    assert [node.op_type for node in model.graph if node.op_type != "Constant"] == ["ReduceMean", "Add"] * 2
    names = {"x", "y", "a", "p", "q", "r"}
    assert all(origin_of(value).name in names for node in model.graph for value in node.outputs)


def test_values_added_by_the_opset_conversion_have_their_consumer_as_origin(tmp_path: Path) -> None:
    text = "g (float[2,3] x) => (float[2,1] y) { y = ReduceMean<axes=[1]>(x) }"
    model = read(_save(tmp_path / "m.onnx", text, opset=11))
    axes = model.graph.node(-1).inputs[1]
    assert axes is not None
    assert origin_of(axes).name == "y"
    assert not origin_of(axes).exact


def test_unsorted_graph_is_sorted(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", "g (float[3] x) => (float[3] y) { a = Neg(x) y = Abs(a) }")
    proto = onnx.load(path)
    nodes = list(reversed(proto.graph.node))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    path.write_bytes(proto.SerializeToString())
    assert [node.op_type for node in read(path).graph] == ["Neg", "Abs"]


def test_contrib_operator_is_read(tmp_path: Path) -> None:
    text = "g (float[3] x) => (float[3] y) { y = com.microsoft.BiasSoftmax<axis = 0, is_inner_broadcast = 0>(x, x) }"
    assert [n.op_type for n in read(_save(tmp_path / "m.onnx", text, more=', "com.microsoft": 1')).graph] == [
        "BiasSoftmax"
    ]


def test_onnx_domain_written_as_ai_onnx(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", "g (float[3] x) => (float[3] y) { y = Neg(x) }")
    proto = onnx.load(path)
    proto.opset_import[0].domain = proto.graph.node[0].domain = "ai.onnx"
    path.write_bytes(proto.SerializeToString())
    assert read(path).graph.node(0).domain == ""


@pytest.mark.parametrize("opset", [10, 99])
def test_opset_out_of_range(tmp_path: Path, opset: int) -> None:
    text = "g (float[3] x) => (float[3] y) { y = Neg(x) }"
    _check_refused(
        f"opset {opset}, which is not supported; export it with an opset from 11 to {newest_opset()}",
        _save(tmp_path / "m.onnx", text, opset=opset),
    )


@pytest.mark.parametrize("opset", range(11, newest_opset() + 1))
def test_every_opset_in_range(tmp_path: Path, opset: int) -> None:
    text = "g (float[3] x) => (float[3] y) { y = Neg(x) }"
    assert read(_save(tmp_path / "m.onnx", text, opset=opset)).opset_imports[""] == max(opset, 21)


def test_shared_dimension_is_set_in_the_other_input(tmp_path: Path) -> None:
    text = "g (float[batch,3] x, float[batch,n] z) => (float[batch,4] y) { y = MatMul(x, w) }"
    model = read(_save(tmp_path / "m.onnx", text, w=WEIGHTS["w"]), {"x": (2, 3)})
    assert str(model.graph.inputs[1].shape) == "[2,n]"


def test_placeholder_sizes_of_exporters_are_unknown(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", "g (float[h,w] x) => (float[h,w] y) { y = Neg(x) }")
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
    _check_refused(match, linear, **{name: shape})


def test_shapes_that_disagree_on_a_shared_dimension(tmp_path: Path) -> None:
    text = "g (float[batch] x, float[batch] z) => (float[batch] y) { y = Add(x, z) }"
    message = "dimension 0, 'batch', is already 2 in another dimension"
    _check_refused(message, _save(tmp_path / "m.onnx", text), x=(2,), z=(3,))


def test_symbolic_shape_is_read_but_not_static(linear: Path) -> None:
    match = r"'x' has no static shape \(batch,3\); set it, for example with --shape x=1,3$"
    with pytest.raises(InputError, match=match):
        require_static(read(linear))


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda path: path.unlink(), "cannot be read: No such file"),
        (lambda path: path.write_bytes(b""), "contains no graph"),
        (lambda path: path.write_bytes(b"hello, this is not a model"), "not an ONNX file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "not an ONNX file"),
    ],
)
def test_corrupt_file(linear: Path, damage: Callable[[Path], None], match: str) -> None:
    damage(linear)
    _check_refused(match, linear)


def test_error_message_of_every_truncation_is_one_line(linear: Path) -> None:
    data = linear.read_bytes()
    for length in range(0, len(data), 3):
        linear.write_bytes(data[:length])
        message = ""
        try:
            read(linear)
        except InputError as error:
            message = str(error)
        assert "\n" not in message


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    _check_refused("cannot be read", tmp_path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("g (float[3] x) => (float[3] y) { }", "contains no graph"),
        ("g (float[3] x) => (float[3] y) { [n] y = other.Magic(x) }", "node 'n' uses the operator 'other.Magic'"),
        ("g (float[3] x) => (float[3] y) { [n] y = com.microsoft.Magic(x) }", "node 'n' uses .* 'com.microsoft.Magic'"),
        ("g (float[3] x) => (float[3] y) { y = Magic(x) }", "node 'y' uses the operator 'Magic'"),
        (
            "g (float[3] x) => (float[3] y) { [n] y = Add(x, lost) }",
            "node 'n' .* reads 'lost', which the graph does not define",
        ),
        (
            "g (float[3] x) => (float[3] y) { [n] a = Add(x, b) [n] b = Neg(a) y = Abs(b) }",
            "node 'n' depends on its own output: the graph has a cycle",
        ),
        (
            "g (float[3] x) => (float[3] y) { [n] a = Add(a, x) [m] y = Neg(a) }",
            "node 'n' depends on its own output: the graph has a cycle",
        ),
        ("g (float[3] x) => (float[3] y) { y = Neg(x) y = Abs(x) }", "tensor 'y' is written twice"),
        ("g (seq(float[3]) x) => (float[3] y) { y = ConcatFromSequence<axis=0>(x) }", "input 'x' is not a tensor"),
    ],
)
def test_bad_graph(tmp_path: Path, text: str, match: str) -> None:
    _check_refused(match, _save(tmp_path / "m.onnx", text, more=', "other": 1, "com.microsoft": 1'))


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("y = MatMul(x, w64)", r"\(MatMul\) requires inputs of one type, but 'x' is float and 'w64' is double"),
        ("y = Gemm(x, w, b64)", r"\(Gemm\) requires inputs of one type, but 'x' is float and 'b64' is double"),
        ("y = Conv(x, w64)", r"\(Conv\) requires inputs of one type, but 'x' is float and 'w64' is double"),
        (
            "a = MatMul(x, w) y = Add(a, b64)",
            r"\(Add\) requires inputs of one type, but 'a' is float and 'b64' is double",
        ),
        (
            "a = Add(w, b64) y = MatMul(x, a)",
            r"\(Add\) requires inputs of one type, but 'w' is float and 'b64' is double",
        ),
        (
            "a = Transpose(w64) y = MatMul(x, a)",
            r"\(MatMul\) requires inputs of one type, but 'x' is float and 'a' is double",
        ),
        ("a = Cast <to = 11> (w) y = MatMul(x, a)", r"\(MatMul\) requires .* 'x' is float and 'a' is double"),
        ("a = Cast <to = 99> (w) y = MatMul(x, a)", r"\(Cast\) casts to the unknown data type 99"),
        ("y = Gather(x, w)", r"\(Gather\) does not accept its input 'w', which is float"),
        ("a = Greater(x, x) y = Where(a, x, w64)", r"\(Where\) requires .* 'x' is float and 'w64' is double"),
    ],
)
def test_types_that_do_not_match(tmp_path: Path, body: str, match: str) -> None:
    text = f"g (float[3,3] x) => (float[3,3] y) {{ {body} }}"
    constants = {"w": normal(3, 3), "b": normal(3)}
    double = {f"{name}64": array.astype(np.float64) for name, array in constants.items()}
    _check_refused(match, _save(tmp_path / "m.onnx", text, **constants, **double))


def test_declared_type_that_differs_from_the_inferred_one(tmp_path: Path) -> None:
    proto = onnx.load(_save(tmp_path / "m.onnx", "g (float[3] x) => (float[3] y) { a = Neg(x) y = Abs(a) }"))
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.DOUBLE, [3]))
    onnx.save(proto, tmp_path / "m.onnx")
    _check_refused(r"\(Neg\) outputs 'a' as float, but the model declares it as double", tmp_path / "m.onnx")


@pytest.mark.parametrize("body", ["y = Pow(x, w64)", "a = Cast <to = 1> (w64) y = MatMul(x, a)", "y = MatMul(x, w)"])
def test_types_that_match_are_read(tmp_path: Path, body: str) -> None:
    text = f"g (float[3,3] x) => (float[3,3] y) {{ {body} }}"
    weight = normal(3, 3)
    read(_save(tmp_path / "m.onnx", text, w=weight, w64=weight.astype(np.float64)))


def test_missing_external_data(tmp_path: Path) -> None:
    path = _save_external(tmp_path)
    (tmp_path / "m.data").unlink()
    _check_refused("'m.data' of tensor 'w' is missing", path)


def test_short_external_data(tmp_path: Path) -> None:
    path = _save_external(tmp_path)
    data = tmp_path / "m.data"
    data.write_bytes(data.read_bytes()[:20])
    _check_refused("'m.data' of tensor 'w' is too short: the tensor needs 48 bytes from offset 0", path)


def test_length_that_does_not_fit_the_shape(tmp_path: Path) -> None:
    path = _save_external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].dims[0] = 2
    path.write_bytes(proto.SerializeToString())
    _check_refused("has length 48 in the model, but dtype and shape need 32 bytes", path)


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd", "sub/../../m.data"])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = _save_external(folder)
    _relocate(path, location)
    _check_refused("of tensor 'w' must be a relative path without '..' inside the model's folder", path)


def test_external_data_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = _save_external(folder)
    (folder / "m.data").rename(tmp_path / "elsewhere")
    (folder / "m.data").symlink_to(tmp_path / "elsewhere")
    _check_refused("must be a relative path without '..' inside the model's folder", path)


def test_external_data_with_hard_links(tmp_path: Path) -> None:
    path = _save_external(tmp_path)
    os.link(tmp_path / "m.data", tmp_path / "again")
    _check_refused("several hard links", path)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (
            lambda graph: graph.initializer[0].dims.append(2),
            r"tensor 'w' holds 48 .*, but its shape \[3, 4, 2\] needs 96",
        ),
        (lambda graph: graph.initializer[0].dims.__setitem__(0, -3), "tensor 'w' has a negative dimension"),
        (lambda graph: setattr(graph.initializer[0], "data_type", 99), "tensor 'w' has the unknown data type 99"),
        (lambda graph: graph.node[0].output.__delitem__(0), "node '' .* has no output"),
        (lambda graph: graph.node[0].attribute.add(name="k"), "attribute 'k' of node '' has no type"),
        (lambda graph: graph.node[0].attribute.add(name="k", i=1, type=2), "not a valid model: Unrecognized attribute"),
        (lambda graph: graph.output.add(name="lost"), "graph output 'lost' is not written by any node"),
        (lambda graph: graph.sparse_initializer.add(), "is sparse"),
    ],
)
def test_corrupt_graph(linear: Path, damage: Callable[[onnx.GraphProto], object], match: str) -> None:
    proto = onnx.load(linear)
    damage(proto.graph)
    linear.write_bytes(proto.SerializeToString())
    _check_refused(match, linear)


def test_name_that_is_not_utf8(linear: Path) -> None:
    linear.write_bytes(linear.read_bytes().replace(b"MatMul", b"Mat\xfful"))
    _check_refused("is not valid UTF-8: the file is corrupt", linear)


def test_functions_that_call_each_other(tmp_path: Path) -> None:
    text = """g (float[3] x) => (float[3] y) { y = my.a(x) }
        <domain: "my", opset_import: ["": 17, "my": 1]> a (p) => (q) { q = my.b(p) }
        <domain: "my", opset_import: ["": 17, "my": 1]> b (p) => (q) { q = my.a(p) }"""
    path = _save(tmp_path / "m.onnx", text, more=', "my": 1')
    message = "m.onnx' has cyclic functions, or functions or constants that cannot be read: Cyclic"
    _check_refused(message, path)


REPROS = Path(__file__).parents[1] / "repros"


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("ext_nul", r"tensor 'W' is in external data, but its location 'ok\\x00.bin' is not a file name"),
        ("ext_badoff", "external data 'ok.bin' of tensor 'W': its offset 'abc' is not a number"),
    ],
)
def test_damaged_reference_to_external_data(name: str, match: str) -> None:
    _check_refused(match, REPROS / f"{name}.onnx")


def test_device_is_refused_before_it_is_read() -> None:
    _check_refused(
        "'/dev/zero' cannot be read: it is not a regular file but a device, pipe or socket", Path("/dev/zero")
    )


def test_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    _check_refused("it is not a regular file", tmp_path / "m.onnx")


def test_file_that_no_protobuf_can_be_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(2**31)  # sparse: it takes no space
    _check_refused("has 2048 MiB, but an ONNX file is smaller", tmp_path / "m.onnx")


def test_file_name_with_nul() -> None:
    _check_refused("it is not a file name", Path("a\0b"))


@pytest.mark.parametrize("inputs", ['x, ""', "x"])
def test_missing_required_input(inputs: str, tmp_path: Path) -> None:
    text = f"g (float[3,3] x) => (float[3,3] y) {{ [n] y = MatMul({inputs}) }}"
    _check_refused(r"node 'n' \(MatMul\) has no input 'B', which it requires", _save(tmp_path / "m.onnx", text))


def test_split_whose_number_of_outputs_differs(tmp_path: Path) -> None:
    """onnx 1.23's shape inference ends the process on it."""
    text = "g (float[7] x) => (float[2] y) { [n] y, b, c, d = Split<num_outputs = 3>(x) }"
    _check_refused(r"node 'n' \(Split\) has 4 outputs", _save(tmp_path / "m.onnx", text, opset=18))


def test_missing_optional_input_is_read(tmp_path: Path) -> None:
    text = 'g (float[3,3] x) => (float[3,3] y) { y = Clip(x, "", high) }'
    assert len(read(_save(tmp_path / "m.onnx", text, high=np.float32(1))).graph) == 1


def test_producer_name_that_is_not_utf8(linear: Path) -> None:
    proto = onnx.load(linear)
    proto.producer_name = "somebody"
    linear.write_bytes(proto.SerializeToString().replace(b"somebody", b"some\xffody"))
    _check_refused("of the model is not valid UTF-8", linear)
