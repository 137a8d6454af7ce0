"""ONNX Runtime's own QuantizeLinear and DequantizeLinear as functions, with cached sessions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from dovetail.encoding import Array, DType, QParams

OPSET = 21
_ONNX = {
    DType.U4: TensorProto.UINT4,
    DType.S4: TensorProto.INT4,
    DType.U8: TensorProto.UINT8,
    DType.S8: TensorProto.INT8,
    DType.U16: TensorProto.UINT16,
    DType.S16: TensorProto.INT16,
    DType.S32: TensorProto.INT32,
    DType.F8E4M3: TensorProto.FLOAT8E4M3FN,
}
# NumPy cannot pass 4-bit values to a session: they go in and out as 8-bit values through a Cast.
_CARRIER = {DType.U4: (TensorProto.UINT8, np.uint8), DType.S4: (TensorProto.INT8, np.int8)}


def ort_quantize(real: Array, qparams: QParams) -> Array:
    """The output of QuantizeLinear, in the encoding's NumPy dtype."""
    session = _session("QuantizeLinear", qparams.dtype, qparams.axis, qparams.encoding.block_size)
    inputs = {"x": _value(real.astype(np.float32), TensorProto.FLOAT), **_qparam_inputs(qparams)}
    out = _run(session, inputs)
    if qparams.dtype is DType.F8E4M3:
        return out.view(qparams.dtype.numpy)
    return out.astype(qparams.dtype.numpy)


def ort_dequantize(quantized: Array, qparams: QParams) -> Array:
    """The output of DequantizeLinear for quantized values."""
    session = _session("DequantizeLinear", qparams.dtype, qparams.axis, qparams.encoding.block_size)
    return _run(session, {"x": _quantized(quantized, qparams.dtype), **_qparam_inputs(qparams)})


def _qparam_inputs(qparams: QParams) -> dict[str, Any]:
    zero_point = qparams.zero_point.astype(qparams.dtype.numpy)
    return {"scale": _value(qparams.scale, TensorProto.FLOAT), "zero_point": _quantized(zero_point, qparams.dtype)}


def _quantized(quantized: Array, dtype: DType) -> Any:
    if dtype in _CARRIER:
        onnx_type, carrier = _CARRIER[dtype]
        return _value(quantized.astype(carrier), onnx_type)
    return _value(quantized, _ONNX[dtype])


def _value(array: Array, onnx_type: int) -> Any:
    array = np.array(array, order="C")
    if onnx_type == TensorProto.FLOAT8E4M3FN:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint8), onnx_type)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _run(session: Any, inputs: dict[str, Any]) -> Array:
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("out", "cpu")
    session.run_with_iobinding(binding)
    return np.array(binding.get_outputs()[0].numpy())


@cache
def _session(op: str, dtype: DType, axis: int | None, block_size: int) -> Any:
    onnx_type = _ONNX[dtype]
    carrier = _CARRIER.get(dtype, (onnx_type, None))[0]
    quantizing = op == "QuantizeLinear"
    in_type, out_type = (TensorProto.FLOAT, carrier) if quantizing else (carrier, TensorProto.FLOAT)
    attributes = {
        key: value for key, value in (("axis", axis), ("block_size", block_size or None)) if value is not None
    }
    narrow = {"x": "x", "zero_point": "zero_point", "out": "out"}
    nodes, after = [], []
    if carrier != onnx_type:
        narrow = {"x": "x" if quantizing else "x4", "zero_point": "zero_point4", "out": "out4" if quantizing else "out"}
        for name in [name for name in ("x", "zero_point") if narrow[name] != name]:
            nodes.append(helper.make_node("Cast", [name], [narrow[name]], to=onnx_type))
        if quantizing:
            after.append(helper.make_node("Cast", ["out4"], ["out"], to=carrier))
    nodes.append(helper.make_node(op, [narrow["x"], "scale", narrow["zero_point"]], [narrow["out"]], **attributes))
    inputs = [("x", in_type), ("scale", TensorProto.FLOAT), ("zero_point", carrier)]
    graph = helper.make_graph(
        [*nodes, *after],
        op,
        [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs],
        [helper.make_tensor_value_info("out", out_type, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
