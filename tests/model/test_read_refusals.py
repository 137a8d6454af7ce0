"""Files that cannot be read are refused in one line that names what is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from dovetail.errors import InputError
from dovetail.model.known_ops import newest_opset
from dovetail.model.read import read
from tests.equality import normal
from tests.model.model_files import LINEAR, WEIGHTS, check_refused, save


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    return save(tmp_path / "m.onnx", LINEAR, **WEIGHTS)


@pytest.mark.parametrize("opset", [6, 99])
def test_opset_out_of_range(tmp_path: Path, opset: int) -> None:
    text = "g (float[3] x) => (float[3] y) { y = Neg(x) }"
    check_refused(
        f"opset {opset}, which is not supported; export it with an opset from 7 to {newest_opset()}",
        save(tmp_path / "m.onnx", text, opset=opset),
    )


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
    check_refused(match, linear)


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
    check_refused("cannot be read", tmp_path)


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
        (
            "g (float[3] x, bool c) => (float[3] y) { z = Neg(r) "
            "r = If(c) <then_branch = t () => (float[3] u) { u = Abs(z) }, "
            "else_branch = e () => (float[3] v) { v = Abs(x) }> y = Neg(r) }",
            "a node with a subgraph depends on its own output: the graph has a cycle",
        ),
        ("g (float[3] x) => (float[3] y) { y = Neg(x) y = Abs(x) }", "tensor 'y' is written twice"),
        ("g (seq(float[3]) x) => (float[3] y) { y = ConcatFromSequence<axis=0>(x) }", "input 'x' is not a tensor"),
    ],
)
def test_bad_graph(tmp_path: Path, text: str, match: str) -> None:
    check_refused(match, save(tmp_path / "m.onnx", text, more=', "other": 1, "com.microsoft": 1'))


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
    check_refused(match, save(tmp_path / "m.onnx", text, **constants, **double))


def test_declared_type_that_differs_from_the_inferred_one(tmp_path: Path) -> None:
    proto = onnx.load(save(tmp_path / "m.onnx", "g (float[3] x) => (float[3] y) { a = Neg(x) y = Abs(a) }"))
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.DOUBLE, [3]))
    onnx.save(proto, tmp_path / "m.onnx")
    check_refused(r"\(Neg\) outputs 'a' as float, but the model declares it as double", tmp_path / "m.onnx")


@pytest.mark.parametrize("body", ["y = Pow(x, w64)", "a = Cast <to = 1> (w64) y = MatMul(x, a)", "y = MatMul(x, w)"])
def test_types_that_match_are_read(tmp_path: Path, body: str) -> None:
    text = f"g (float[3,3] x) => (float[3,3] y) {{ {body} }}"
    weight = normal(3, 3)
    read(save(tmp_path / "m.onnx", text, w=weight, w64=weight.astype(np.float64)))


def as_other_field(tensor: onnx.TensorProto) -> None:
    """An empty tensor of one type with data in the field of another."""
    tensor.ClearField("raw_data")
    tensor.float_data.append(1.0)
    tensor.data_type = onnx.TensorProto.UINT64
    tensor.dims[0] = 0


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (
            lambda graph: graph.initializer[0].dims.append(2),
            r"tensor 'w' holds 48 .*, but its shape \[3, 4, 2\] needs 96",
        ),
        (lambda graph: graph.initializer[0].dims.__setitem__(0, -3), "tensor 'w' has a negative dimension"),
        (lambda graph: setattr(graph.initializer[0], "data_type", 99), "tensor 'w' has the unknown data type 99"),
        (
            lambda graph: as_other_field(graph.initializer[0]),
            "tensor 'w' has the type UINT64, but values in the field float_data",
        ),
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
    check_refused(match, linear)


def test_name_that_is_not_utf8(linear: Path) -> None:
    linear.write_bytes(linear.read_bytes().replace(b"MatMul", b"Mat\xfful"))
    check_refused("is not valid UTF-8: the file is corrupt", linear)


def test_functions_that_call_each_other(tmp_path: Path) -> None:
    text = """g (float[3] x) => (float[3] y) { y = my.a(x) }
        <domain: "my", opset_import: ["": 17, "my": 1]> a (p) => (q) { q = my.b(p) }
        <domain: "my", opset_import: ["": 17, "my": 1]> b (p) => (q) { q = my.a(p) }"""
    path = save(tmp_path / "m.onnx", text, more=', "my": 1')
    message = "m.onnx' has cyclic functions, or functions or constants that cannot be read: Cyclic"
    check_refused(message, path)


def test_device_is_refused_before_it_is_read() -> None:
    check_refused(
        "'/dev/zero' cannot be read: it is not a regular file but a device, pipe or socket", Path("/dev/zero")
    )


def test_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    check_refused("it is not a regular file", tmp_path / "m.onnx")


def test_file_that_no_protobuf_can_be_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(2**31)  # sparse: it takes no space
    check_refused("has 2048 MiB, but an ONNX file is smaller", tmp_path / "m.onnx")


def test_file_name_with_nul() -> None:
    check_refused("it is not a file name", Path("a\0b"))


@pytest.mark.parametrize("inputs", ['x, ""', "x"])
def test_missing_required_input(inputs: str, tmp_path: Path) -> None:
    text = f"g (float[3,3] x) => (float[3,3] y) {{ [n] y = MatMul({inputs}) }}"
    check_refused(r"node 'n' \(MatMul\) has no input 'B', which it requires", save(tmp_path / "m.onnx", text))


def test_split_whose_number_of_outputs_differs(tmp_path: Path) -> None:
    """onnx 1.23's shape inference ends the process on it."""
    text = "g (float[7] x) => (float[2] y) { [n] y, b, c, d = Split<num_outputs = 3>(x) }"
    check_refused(r"node 'n' \(Split\) has 4 outputs", save(tmp_path / "m.onnx", text, opset=18))


def test_producer_name_that_is_not_utf8(linear: Path) -> None:
    proto = onnx.load(linear)
    proto.producer_name = "somebody"
    linear.write_bytes(proto.SerializeToString().replace(b"somebody", b"some\xffody"))
    check_refused("of the model is not valid UTF-8", linear)
