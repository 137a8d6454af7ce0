"""Graphs that no runtime can run are refused by node, when they are read or when computed sizes become constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from dovetail import zoo
from dovetail.checking import check_file
from dovetail.config import FitOptions
from dovetail.errors import InputError
from dovetail.job import prepare
from dovetail.model.read import read
from dovetail.passes.normalize import normalize
from dovetail.targets import open_target
from tests.equality import Array

REPROS = Path(__file__).parents[1] / "repros"
TARGET = open_target("ort-cpu", {})


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("bad_axis", r"node 's' \(Softmax\) cannot run: 'axis' must be in .* 77; its inputs are x \[1,8\]"),
        ("shape_mismatch", r"node 'mm' \(MatMul\) cannot run: .*; its inputs are x \[1,7\], W \[8,8\]"),
        ("conv_on_rank2", r"node 'c' \(Conv\) cannot run: .* at least 3 dimensions; its inputs are x \[1,8\]"),
    ],
)
def test_check_and_fit_refuse_alike(name: str, match: str) -> None:
    path = REPROS / f"{name}.onnx"
    with pytest.raises(InputError, match=match) as from_check:
        check_file(path, TARGET)
    with pytest.raises(InputError) as from_fit:
        prepare(path, FitOptions(target="ort-cpu"), calibration="random")
    assert str(from_check.value) == str(from_fit.value)
    assert "\n" not in str(from_check.value)


def _save(path: Path, body: str, inputs: str = "float[2,6] x", **constants: Array) -> Path:
    text = f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g ({inputs}) => (float[a,b] y) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("[n] y = Reshape(x, s)", r"'n' \(Reshape\) cannot run: 12 elements cannot have the shape \[5,2\]"),
        ("a = Neg(x) [n] y = Reshape(a, s)", r"'n' .*; its inputs are a \[2,6\], s \[2\], those of the model are x"),
        ("[n] y = Concat<axis = 1>(x, w)", r"'n' \(Concat\) cannot run"),
        ("[n] y = Add(x, w)", r"'n' \(Add\) cannot run: Incompatible dimensions"),
        ("[n] y = Transpose<perm = [0, 0]>(x)", r"'n' \(Transpose\) cannot run"),
        ("b = Flatten(x) [n] y = Gemm(b, w)", r"'n' \(Gemm\) cannot run"),
        ("[n] a = com.microsoft.FusedMatMul<alpha = 2.0>(x, w) y = Neg(a)", r"node 'n' \(MatMul\) cannot run"),
    ],
)
def test_refused_on_read(body: str, match: str, tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", body, s=np.array([5, 2]), w=np.zeros((5, 4), np.float32))
    with pytest.raises(InputError, match=match):
        read(path)


@pytest.mark.parametrize(
    ("inputs", "factors", "match"),
    [
        (
            "x, , s",
            [1, 0],
            r"'n' \(Resize\) cannot run: the scale 0 is not a positive number; its inputs are x ",
        ),
        ("x, , s", [1, -2], "the scale -2 is not a positive number"),
        ("x, , s", [1, np.nan], "the scale nan is not a positive number"),
        ("x, , , s", [2, -3], "the size -3 is not a positive number"),
    ],
)
def test_a_resize_that_no_runtime_accepts_is_refused(
    inputs: str, factors: list[float], match: str, tmp_path: Path
) -> None:
    dtype = np.int64 if ", , , " in inputs else np.float32
    path = _save(tmp_path / "m.onnx", f"[n] y = Resize({inputs})", s=np.array(factors, dtype))
    with pytest.raises(InputError, match=match):
        check_file(path, TARGET)
    with pytest.raises(Fail, match="Scale value"):
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(
            None, {"x": np.ones((2, 6), np.float32)}
        )


def test_size_that_is_computed_is_checked_when_it_is_a_constant(tmp_path: Path) -> None:
    body = "h = Floor(f) s = Cast<to = 7>(h) [n] y = Reshape(x, s)"
    path = _save(tmp_path / "m.onnx", body, f=np.array([5.5, 2.5], np.float32))
    model = read(path)
    with pytest.raises(InputError, match=r"'n' \(Reshape\) cannot run: 12 elements cannot have the shape \[5,2\]"):
        normalize(model)
    assert len(normalize(read(_save(path, body, f=np.array([3.5, 4.5], np.float32))))[0].graph) == 1


@pytest.mark.parametrize(
    "body",
    [
        "y = Reshape(x, s)",
        "a = MeanVarianceNormalization<axes = [0]>(x) y = Reshape(a, s)",  # onnx 1.23 fails on its definition
        "n = NonZero(x) c = Cast<to = 1>(n) y = Identity(c)",
    ],
)
def test_good_graphs_are_read(body: str, tmp_path: Path) -> None:
    read(_save(tmp_path / "m.onnx", body, s=np.array([3, -1])))


def test_recorded_shapes_of_another_input_size_are_not_held_against_a_model(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", "a = Neg(x) y = Abs(a)", inputs="float[n,6] x")
    proto = onnx.load(path)
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [7, 6]))
    onnx.save(proto, path)
    assert read(path, {"x": (2, 6)}).graph.inputs[0].shape == (2, 6)


def test_recorded_shapes_in_a_branch_are_not_held_against_a_model(tmp_path: Path) -> None:
    """Paddle's exporter records a rank that the branch of an If does not have; ONNX Runtime ignores it."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[4] x, bool c) => (float[4] y)
    { y = If (c) <then_branch = t () => (float[4] a) { b = Neg(x) a = Abs(b) },
                  else_branch = e () => (float[4] d) { d = Relu(x) }> }"""
    proto = onnx.parser.parse_model(text)
    branch = proto.graph.node[0].attribute[0].g
    branch.value_info.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, []))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    session = onnxruntime.InferenceSession(path)
    assert session.run(None, {"x": np.ones(4, np.float32), "c": np.array(True)})[0].shape == (4,)
    read(path)


def _with_open_size(path: Path) -> Path:
    """The shipped ViT for digits, with height and width declared as dynamic, though its graph has fixed sizes."""
    proto = onnx.load(zoo.load("vit_digits").model_path)
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    dims[2].dim_param, dims[3].dim_param = "h", "w"
    onnx.save(proto, path)
    return path


def test_size_other_than_the_exported_one_is_refused_by_node(tmp_path: Path) -> None:
    path = _with_open_size(tmp_path / "m.onnx")
    match = r"node '\S+' \(Reshape\) cannot run: .*, those of the model are images \[1,1,4,4\]"
    with pytest.raises(InputError, match=match):
        check_file(path, TARGET, {"images": (1, 1, 4, 4)})
    assert check_file(path, TARGET, {"images": (1, 1, 8, 8)}) == ()


@pytest.mark.parametrize("after", ["Relu", "Sigmoid", "HardSwish", "Gelu"])
def test_what_follows_a_group_normalization_is_accepted(tmp_path: Path, after: str) -> None:
    """onnx 1.23 infers no type for GroupNormalization, and then fails on some operators that follow."""
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[1,4,3,3] x) => (float[1,4,3,3] y)
    <float[4] w = {{1, 2, 3, 4}}, float[4] b = {{0, 1, 2, 3}}>
    {{ n = GroupNormalization <num_groups = 2> (x, w, b) y = {after}(n) }}"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    model, _ = normalize(read(path, {}))
    assert [str(node.outputs[0].shape) for node in model.graph] == ["[1,4,3,3]"] * 2
