"""The numbers of a QuantizeLinear or DequantizeLinear node as QParams."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dovetail.encoding import DType, Encoding, Granularity, QParams
from dovetail.errors import InputError
from dovetail.model.edit import attribute, constant_of, shape_of

STORED_TYPES: dict[ir.DataType, DType] = {
    ir.DataType.UINT4: DType.U4,
    ir.DataType.INT4: DType.S4,
    ir.DataType.UINT8: DType.U8,
    ir.DataType.INT8: DType.S8,
    ir.DataType.UINT16: DType.U16,
    ir.DataType.INT16: DType.S16,
    ir.DataType.INT32: DType.S32,
    ir.DataType.FLOAT8E4M3FN: DType.F8E4M3,
}
IR_TYPES: dict[DType, ir.DataType] = {dtype: stored for stored, dtype in STORED_TYPES.items()}


def is_quantize(node: ir.Node | None) -> bool:
    """Whether the node is a QuantizeLinear, of ONNX or of ONNX Runtime's own domain."""
    return node is not None and node.op_type == "QuantizeLinear"


def is_dequantize(node: ir.Node | None) -> bool:
    """Whether the node is a DequantizeLinear, of ONNX or of ONNX Runtime's own domain."""
    return node is not None and node.op_type == "DequantizeLinear"


def qparams_of(node: ir.Node) -> QParams:
    """What a Q or DQ node stores; numbers that are not constant, finite and above zero are refused."""
    scale = constant_of(node.inputs[1])
    if scale is None:
        raise InputError(f"{node.op_type} {node.name!r}: its scale is not a constant")
    if scale.dtype != np.float32:
        raise InputError(f"{node.op_type} {node.name!r}: its scale is {scale.dtype}, only float32 is read")
    if not np.isfinite(scale).all() or not (scale > 0).all():
        raise InputError(f"{node.op_type} {node.name!r}: its scale is not finite and above zero")
    dtype = _dtype(node)
    given = node.inputs[2] if len(node.inputs) > 2 else None
    zero_point = np.zeros(scale.shape, np.int32) if given is None else constant_of(given)
    if zero_point is None:
        raise InputError(f"{node.op_type} {node.name!r}: its zero point is not a constant")
    if dtype is DType.F8E4M3:
        zero_point = np.zeros(scale.shape, np.int32)
    block = int(attribute(node, "block_size", 0))
    axis = int(attribute(node, "axis", 1))
    shape = shape_of(node.inputs[0])
    if axis < 0 and shape is not None:
        axis += len(shape)
    zero_point = zero_point.astype(np.int32)
    symmetric = dtype.is_integer and bool((zero_point == _middle(dtype)).all())
    if scale.size == 1 and not block and (shape is None or scale.ndim == 0 or shape[axis : axis + 1] != (1,)):
        encoding = Encoding(dtype, symmetric)
        return QParams(encoding, scale.reshape(()), zero_point.reshape(()))
    granularity = Granularity.BLOCK if block else Granularity.AXIS
    return QParams(Encoding(dtype, symmetric, granularity, block), scale, zero_point, axis)


def _middle(dtype: DType) -> int:
    return 0 if dtype.grid.signed else 1 << (dtype.bits - 1)


def _dtype(node: ir.Node) -> DType:
    """The stored type: what a DQ reads; what a Q's zero point or output_dtype says, uint8 by default."""
    if is_dequantize(node):
        element = node.inputs[0].dtype if node.inputs[0] is not None else None
    elif len(node.inputs) > 2 and node.inputs[2] is not None:
        element = node.inputs[2].dtype
    else:
        code = int(attribute(node, "output_dtype", 0))
        element = ir.DataType(code) if code else ir.DataType.UINT8
    if element is None or element not in STORED_TYPES:
        raise InputError(f"{node.op_type} {node.name!r}: stored type {element} is not one that is known here")
    return STORED_TYPES[element]
