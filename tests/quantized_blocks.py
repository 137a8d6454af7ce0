"""A QDQ model of one linear layer with a block-quantized weight, as another tool would write it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from dovetail.encoding import Array, DType, Encoding, Granularity, QParams
from dovetail.model.read import read
from dovetail.numerics.affine import quantize
from dovetail.numerics.ranges import weight_params
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.qdq.to_lpbq import to_lpbq
from dovetail.targets.ort_cpu.target import ORT_CPU

ROWS, CHANNELS, OUT = 8, 64, 40
BLOCKS_OF_16 = Encoding(DType.S4, True, Granularity.BLOCK, 16)
_ONNX_TYPES = {
    DType.S4: TensorProto.INT4,
    DType.U4: TensorProto.UINT4,
    DType.S8: TensorProto.INT8,
    DType.U16: TensorProto.UINT16,
    DType.U8: TensorProto.UINT8,
}


def weight() -> Array:
    random = np.random.default_rng(0)
    return (random.standard_normal((CHANNELS, OUT)) * np.exp(random.normal(size=(CHANNELS, 1)))).astype(np.float32)


def tensor(name: str, array: Array, dtype: DType) -> onnx.TensorProto:
    return helper.make_tensor(name, _ONNX_TYPES[dtype], array.shape, array.astype(np.int32).reshape(-1).tolist())


def blocks(
    path: Path,
    encoding: Encoding = BLOCKS_OF_16,
    *,
    axis: int = 0,
    activation: DType | None = DType.U16,
    op: str = "MatMul",
    scale: Array | None = None,
    axis_attribute: bool = True,
    zero_block_scale: float | None = None,
) -> Path:
    """A QDQ model of one linear layer, as another tool would write it; ``op`` may be Gemm with transB, too."""
    values = weight().T.copy() if op == "Gemm" else weight()
    values = values[:, :, None, None].transpose(1, 0, 2, 3).copy() if op == "Conv" else values
    params = weight_params(values, encoding, axis if encoding.granularity is not Granularity.TENSOR else None)
    if zero_block_scale is not None:
        values[:16, 0] = 0
        scales = np.array(params.scale)
        scales[0, 0] = zero_block_scale
        params = QParams(params.encoding, scales, params.zero_point, params.axis)
    integers = quantize(values, params)
    written = params.scale if scale is None else scale
    zero_point = np.broadcast_to(params.zero_point.reshape(-1)[0], written.shape)
    if written.shape == params.zero_point.shape:
        zero_point = params.zero_point
    initializers = [
        tensor("w_q", integers, params.dtype),
        numpy_helper.from_array(written, "w_s"),
        tensor("w_z", zero_point, params.dtype),
    ]
    nodes = []
    for name, limit in (("x", 4.0), ("y0", 60.0)) if activation is not None else ():
        top = activation.grid.high
        initializers.append(numpy_helper.from_array(np.float32(2 * limit / top), f"{name}_s"))
        initializers.append(tensor(f"{name}_z", np.asarray((top + 1) // 2), activation))
    attributes: dict[str, Any] = {"axis": axis} if axis_attribute else {}
    attributes |= {"block_size": encoding.block_size} if encoding.block_size else {}
    data = "x"
    if activation is not None:
        nodes += [helper.make_node("QuantizeLinear", ["x", "x_s", "x_z"], ["x_q"])]
        nodes += [helper.make_node("DequantizeLinear", ["x_q", "x_s", "x_z"], ["x_dq"])]
        data = "x_dq"
    nodes.append(helper.make_node("DequantizeLinear", ["w_q", "w_s", "w_z"], ["w_dq"], **attributes))
    nodes.append(helper.make_node(op, [data, "w_dq"], ["y0"], **({"transB": 1} if op == "Gemm" else {})))
    last = "y0"
    if activation is not None:
        nodes += [helper.make_node("QuantizeLinear", ["y0", "y0_s", "y0_z"], ["y0_q"])]
        nodes += [helper.make_node("DequantizeLinear", ["y0_q", "y0_s", "y0_z"], ["y"])]
        last = "y"
    shapes = ([1, CHANNELS, 4, 2], [1, OUT, 4, 2]) if op == "Conv" else ([ROWS, CHANNELS], [ROWS, OUT])
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
        for name, shape in zip(("x", last), shapes, strict=True)
    )
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    for index, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{index}"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def layers(path: Path, weights: Sequence[tuple[Array, Encoding, int]]) -> Path:
    """A QDQ model of MatMuls one after the other, with uint16 activations: (weight, encoding, axis) of each."""
    nodes: list[onnx.NodeProto] = []
    initializers: list[onnx.TensorProto] = []

    def quantized(name: str, limit: float) -> str:
        initializers.append(numpy_helper.from_array(np.float32(2 * limit / DType.U16.grid.high), f"{name}_s"))
        initializers.append(tensor(f"{name}_z", np.asarray(2**15), DType.U16))
        nodes.append(helper.make_node("QuantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [f"{name}_dq"]))
        return f"{name}_dq"

    last = quantized("x", 4.0)
    for index, (values, encoding, axis) in enumerate(weights):
        params, name = weight_params(values, encoding, axis), f"w{index}"
        initializers.append(tensor(f"{name}_q", quantize(values, params), params.dtype))
        initializers.append(numpy_helper.from_array(np.asarray(params.scale), f"{name}_s"))
        initializers.append(tensor(f"{name}_z", params.zero_point, params.dtype))
        operands = [f"{name}_q", f"{name}_s", f"{name}_z"]
        size = encoding.block_size
        nodes.append(helper.make_node("DequantizeLinear", operands, [f"{name}_dq"], axis=axis, block_size=size))
        nodes.append(helper.make_node("MatMul", [last, f"{name}_dq"], [f"y{index}"]))
        last = quantized(f"y{index}", 60.0)
    first, final = weights[0][0], weights[-1][0]
    channels = first.shape[-2] if first.ndim > 1 else first.shape[0]
    shapes = {"x": [2, ROWS, channels], last: [2, ROWS, *final.shape[-1:]] if final.ndim > 1 else [2, ROWS]}
    inputs, outputs = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)] for n, shape in shapes.items())
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    for index, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{index}"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def with_integer_scales(path: Path, output: Path) -> Path:
    """The model with integer scales (LPBQ), as a file."""
    model = read(path)
    infer_shapes(model)
    if not to_lpbq(model, ORT_CPU.table).changed:
        raise ValueError(f"{path.name} has no weight that can have integer scales")
    ir.save(model, output)
    return output
