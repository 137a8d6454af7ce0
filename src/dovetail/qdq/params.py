"""The scale and zero point of a QuantizeLinear or DequantizeLinear node as QParams."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, Encoding, Granularity, QParams, expanded_qparams
from dovetail.errors import InputError
from dovetail.model.edit import attribute, constant_of, shape_of
from dovetail.numerics.affine import dequantize
from dovetail.numerics.block import scale_shape

QUANTIZED_TYPES: dict[ir.DataType, DType] = {
    ir.DataType.UINT4: DType.U4,
    ir.DataType.INT4: DType.S4,
    ir.DataType.UINT8: DType.U8,
    ir.DataType.INT8: DType.S8,
    ir.DataType.UINT16: DType.U16,
    ir.DataType.INT16: DType.S16,
    ir.DataType.INT32: DType.S32,
    ir.DataType.FLOAT8E4M3FN: DType.F8E4M3,
}
IR_TYPES: dict[DType, ir.DataType] = {dtype: onnx_type for onnx_type, dtype in QUANTIZED_TYPES.items()}
# ONNX Runtime's own domain had 16-bit Q and DQ before ONNX opset 21; they compute the same.
_DOMAINS = ("", "ai.onnx", "com.microsoft")
# A graph in float16 has float16 scales.
_REAL_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_NO_ZERO_POINT = (DType.S32, DType.F8E4M3)


def is_quantize(node: ir.Node | None) -> bool:
    """Whether the node is a QuantizeLinear, of ONNX or of ONNX Runtime's own domain."""
    return node is not None and node.op_type == "QuantizeLinear" and node.domain in _DOMAINS


def is_dequantize(node: ir.Node | None) -> bool:
    """Whether the node is a DequantizeLinear, of ONNX or of ONNX Runtime's own domain."""
    return node is not None and node.op_type == "DequantizeLinear" and node.domain in _DOMAINS


def use_onnx_domain(model: ir.Model) -> None:
    """Move the Q and DQ nodes of ONNX Runtime's own domain to that of ONNX, in place, so that types can be inferred."""
    for node in model.graph:
        if is_quantize(node) or is_dequantize(node):
            node.domain = ""


def qparams_of(node: ir.Node) -> QParams:
    """The qparams of a Q or DQ node, which must be constant, finite, above zero and of the right shape."""
    _check_real_type(node)
    dtype = _dtype(node)
    scale, zero_point = _scale(node), _zero_point(node)
    if zero_point is None:
        zero_point = np.zeros(scale.shape, np.int32)
    elif zero_point.size != scale.size:
        raise _refusal(node, f"scale has shape {scale.shape} and zero point {zero_point.shape}: they must be equal")
    elif dtype in _NO_ZERO_POINT and zero_point.astype(np.float32).any():
        raise _refusal(node, f"the zero point of {dtype} must be 0")
    elif scale.size == zero_point.size == 1:
        zero_point = zero_point.reshape(scale.shape)
    zero_point = zero_point.astype(np.int32)
    symmetric = dtype.is_integer and bool((zero_point == _middle(dtype)).all())
    block = int(attribute(node, "block_size", 0))
    axis = _axis(node)
    shape = _shape(node.inputs[0])
    if scale.size == 1 and not block and (scale.ndim == 0 or shape is None or shape[axis : axis + 1] != (1,)):
        return QParams(Encoding(dtype, symmetric), scale.reshape(()), zero_point.reshape(()))
    encoding = Encoding(dtype, symmetric, Granularity.BLOCK if block else Granularity.AXIS, block)
    try:
        if shape is not None:
            _check_shape(scale, scale_shape(shape, encoding, axis), shape)
        return _expanded(node, encoding, axis) or QParams(encoding, scale, zero_point, axis)
    except (InputError, ValueError) as error:
        raise _refusal(node, str(error)) from error


def _shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a value; of a constant its own, which the file may contradict elsewhere."""
    tensor = None if value is None else value.const_value
    return shape_of(value) if tensor is None else tuple(tensor.shape.numpy())


def _check_shape(scale: Array, expected: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if scale.shape != expected:
        raise ValueError(f"its scale has shape {scale.shape}, but a tensor of shape {shape} requires {expected}")


def _refusal(node: ir.Node, why: str) -> InputError:
    return InputError(f"{node.op_type} {node.name!r}: {why}")


def _scale(node: ir.Node) -> Array:
    scale = constant_of(node.inputs[1])
    if scale is None and (producer := _scale_producer(node)) is not None:
        try:
            scale = dequantize(_integers(producer), qparams_of(producer))
        except InputError as error:
            raise _refusal(node, f"its integer scales: {error}") from error
    if scale is None:
        raise _refusal(node, "its scale is not a constant")
    if scale.dtype not in (np.float32, np.float16):
        raise _refusal(node, f"its scale is {scale.dtype}; only float32 and float16 are supported")
    if not np.isfinite(scale).all() or not (scale > 0).all():
        raise _refusal(node, "its scale must be finite and above zero")
    return scale


def dequantizes_scales(node: ir.Node) -> bool:
    """Whether a DQ only computes the scales of other DQs: the integer scales of expanded blocks."""
    uses = node.outputs[0].uses()
    return is_dequantize(node) and bool(uses) and all(is_dequantize(user) and index == 1 for user, index in uses)


def two_levels(params: QParams) -> tuple[Array, Array, int] | None:
    """The integer scales, the scales per channel (rank 1) and their axis; None if no DequantizeLinear has them."""
    if params.int_scale is None or params.channel_scale is None or params.axis is None:
        return None
    shape = params.channel_scale.shape
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    others = [axis for axis in range(len(shape)) if axis != params.axis % len(shape)]
    if len(axes) > 1 or not others:
        return None
    return params.int_scale, params.channel_scale.reshape(-1), axes[0] if axes else others[0]


def _scale_producer(node: ir.Node) -> ir.Node | None:
    """The DQ that computes a node's scales from constant integers."""
    producer = None if node.inputs[1] is None else node.inputs[1].producer()
    if producer is None or not is_dequantize(producer) or constant_of(producer.inputs[0]) is None:
        return None
    return producer


def _integers(dequantize_node: ir.Node) -> Array:
    integers = constant_of(dequantize_node.inputs[0])
    if integers is None:
        raise _refusal(dequantize_node, "its integers are not constant")
    return integers


def _expanded(node: ir.Node, encoding: Encoding, axis: int) -> QParams | None:
    """The qparams of a block-quantized DQ whose scales are integers times one scale per channel; None for others."""
    producer = _scale_producer(node)
    if producer is None or not encoding.symmetric or not encoding.is_blocked:
        return None
    levels, integers = qparams_of(producer), _integers(producer)
    most = 1 << encoding.dtype.bits
    if levels.axis == axis or levels.zero_point.any() or integers.min() < 1 or integers.max() > most:
        return None
    channel_shape = [size if at == levels.axis else 1 for at, size in enumerate(integers.shape)]
    expanded = replace(encoding, granularity=Granularity.EXPANDED_BLOCK)
    return expanded_qparams(expanded, levels.scale.reshape(channel_shape), integers, axis)


def _zero_point(node: ir.Node) -> Array | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return None
    zero_point = constant_of(value)
    if zero_point is None:
        raise _refusal(node, "its zero point is not a constant")
    return zero_point


def _axis(node: ir.Node) -> int:
    """The axis as a non-negative index; as written in the node if the rank is not known."""
    axis = int(attribute(node, "axis", 1))
    value = node.inputs[0]
    rank = None if value is None or value.shape is None else len(value.shape)
    return axis + rank if axis < 0 and rank is not None else axis


def _middle(dtype: DType) -> int:
    return 0 if dtype.grid.signed else 1 << (dtype.bits - 1)


def _check_real_type(node: ir.Node) -> None:
    """Raise InputError if a node computes in, reads or writes another float dtype than float32 or float16."""
    real = node.inputs[0] if is_quantize(node) else node.outputs[0]
    if real is not None and real.dtype not in (None, *_REAL_TYPES):
        raise _refusal(node, f"its float values are {real.dtype}; only FLOAT and FLOAT16 are supported")
    precision = attribute(node, "precision" if is_quantize(node) else "output_dtype", 0)
    if precision not in (0, *_REAL_TYPES):
        raise _refusal(node, f"it computes in {ir.DataType(precision)}; only FLOAT and FLOAT16 are supported")
    if not attribute(node, "saturate", 1):
        raise _refusal(node, "saturate=0 is not supported")


def quantized_type(node: ir.Node) -> ir.DataType | None:
    """The type of a DQ's input, or of a Q's zero point or output_dtype, by default uint8; None if it is not known."""
    if is_dequantize(node):
        return node.inputs[0].dtype if node.inputs[0] is not None else None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        return node.inputs[2].dtype
    code = int(attribute(node, "output_dtype", 0))
    return ir.DataType(code) if code else ir.DataType.UINT8


def _dtype(node: ir.Node) -> DType:
    element = quantized_type(node)
    if element is None or element not in QUANTIZED_TYPES:
        raise _refusal(node, f"quantized dtype {element} is not supported")
    return QUANTIZED_TYPES[element]
