"""Int4 weights of another tool's model that no kernel has as they are, or that contradict themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import dovetail
from dovetail.encoding import DType, Encoding, Granularity, QParams
from dovetail.errors import InputError
from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.invert import invert
from dovetail.qdq.to_lpbq import to_lpbq
from dovetail.targets.ort_cpu.target import ORT_CPU
from tests.quantized_blocks import CHANNELS, OUT, ROWS, blocks, with_integer_scales

Edit = Callable[[onnx.ModelProto], None]


def calibration(*rows: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((4, *rows, CHANNELS)).astype(np.float32)}


def weight_in(path: Path) -> tuple[np.ndarray, QParams]:
    """The real values and the qparams of the only weight in blocks or per channel of a QDQ model."""
    model, plan = invert(read(path))
    ((edge, params),) = [(e, c.storage) for e, c in plan.edges.items() if e.index == 1]
    assert isinstance(params, QParams)
    node = next(node for node in model.graph if node.name == edge.node)
    value = node.inputs[1]
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy(), params


@pytest.mark.parametrize("dtype", [DType.S4, DType.U4])
def test_asymmetric_int4_per_channel_is_int8_with_the_same_values(dtype: DType, tmp_path: Path) -> None:
    """No target has such kernels; int8 with the same scale holds every difference of two 4-bit integers."""
    path = blocks(tmp_path / "model.onnx", Encoding(dtype, False, Granularity.AXIS), axis=1)
    given, params = weight_in(path)
    assert params.zero_point.any()
    result = dovetail.repair(path, target="ort-cpu", output=tmp_path / "run", calibration=calibration(ROWS))
    repaired, planned = weight_in(tmp_path / "run/model.onnx")
    assert (planned.dtype, planned.encoding.granularity) == (DType.S8, Granularity.AXIS)
    np.testing.assert_array_equal(planned.scale, params.scale)
    np.testing.assert_array_equal(repaired, given)
    (row,) = [row for row in result.plan if row.edge is not None and row.edge.index == 1]
    assert "w8a16: its values in the file are not symmetric, and ort-cpu has no such" in row.detail


def test_symmetric_int4_per_channel_stays(tmp_path: Path) -> None:
    path = blocks(tmp_path / "model.onnx", Encoding(DType.S4, True, Granularity.AXIS), axis=1)
    given, params = weight_in(path)
    dovetail.repair(path, target="ort-cpu", output=tmp_path / "run", calibration=calibration(ROWS))
    repaired, planned = weight_in(tmp_path / "run/model.onnx")
    assert planned == params
    np.testing.assert_array_equal(repaired, given)


def test_uint4_with_zero_point_8_has_the_same_values_as_int4(tmp_path: Path) -> None:
    """Scales that are 16 times a scale of their channel already: the conversion changes no value."""
    encoding = Encoding(DType.U4, True, Granularity.BLOCK, 16)
    scale = np.broadcast_to(2.0 ** np.arange(-8, OUT - 8)[None] / 2**12, (CHANNELS // 16, OUT)).astype(np.float32)
    path = blocks(tmp_path / "model.onnx", encoding, scale=scale)
    given, params = weight_in(path)
    assert params.dtype is DType.U4
    converted = with_integer_scales(path, tmp_path / "converted.onnx")
    real, expanded = weight_in(converted)
    assert (expanded.dtype, expanded.encoding.granularity) == (DType.S4, Granularity.EXPANDED_BLOCK)
    np.testing.assert_array_equal(real, given)


def test_an_axis_that_is_left_out_is_axis_1(tmp_path: Path) -> None:
    """The default of ONNX: of a Gemm with transB, these are the input channels."""
    path = blocks(tmp_path / "model.onnx", op="Gemm", axis=1, axis_attribute=False)
    model = read(path)
    infer_shapes(model)
    (site,) = to_lpbq(model, ORT_CPU.table).changed
    assert "blocks of 16 along axis 1" in site.what


def edited(path: Path, edit: Edit) -> Path:
    model = onnx.load(path)
    edit(model)
    onnx.save(model, path)
    return path


def _block_size(size: int) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        (node,) = [node for node in model.graph.node if any(a.name == "block_size" for a in node.attribute)]
        next(a for a in node.attribute if a.name == "block_size").i = size

    return edit


def _initializer(suffix: str, change: Callable[[np.ndarray], np.ndarray]) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name.endswith(suffix)]
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)).copy(), tensor.name))

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_block_size(32), r"its scale has shape \(4, 40\), but a tensor of shape \(64, 40\) requires \(2, 40\)"),
        (_block_size(24), r"requires \(3, 40\)"),
        (_initializer("/int_scale", lambda a: a[:3]), r"its scale has shape \(3, 40\)"),
        (_initializer("/int_scale", lambda a: a[:, :8]), "must have shape|requires"),
        (_initializer("/int_scale", lambda a: a[0]), "requires|axis"),
        (_initializer("/int_scale", lambda a: a[:0]), r"requires \(4, 40\)|no values"),
        (_initializer("/channel_scale", lambda a: a[:7]), "must have shape|requires"),
    ],
    ids=["larger blocks", "indivisible", "too few blocks", "too few channels", "rank 1", "empty", "channel scales"],
)
def test_integer_scales_that_contradict_the_weight_are_an_error_that_names_the_node(
    edit: Edit, message: str, tmp_path: Path
) -> None:
    path = edited(with_integer_scales(blocks(tmp_path / "model.onnx"), tmp_path / "lpbq.onnx"), edit)
    with pytest.raises(InputError, match=rf"(?s)DequantizeLinear.*({message})"):
        dovetail.repair(path, target="ort-cpu", output=tmp_path / "run", calibration=calibration(ROWS))
    assert not (tmp_path / "run/model.onnx").exists()


def test_integer_scales_of_another_tool_are_kept(tmp_path: Path) -> None:
    path = with_integer_scales(blocks(tmp_path / "model.onnx"), tmp_path / "lpbq.onnx")
    given, params = weight_in(path)
    dovetail.repair(path, target="ort-cpu", output=tmp_path / "run", calibration=calibration(ROWS))
    repaired, planned = weight_in(tmp_path / "run/model.onnx")
    assert planned == params
    np.testing.assert_array_equal(repaired, given)
