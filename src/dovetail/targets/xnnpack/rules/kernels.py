"""Q1 and Q4 on XNNPACK: Q/DQ pairs around operators that it computes in float, and operators that it does not have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.place import at_node
from dovetail.model.slices import MOST_AXES, selects_one_per_step, slice_ranges
from dovetail.plan.constraints import Unit
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, say
from dovetail.rules.rule import rule
from dovetail.targets.xnnpack.operators.arithmetic import POWERS

# Operators that are lowered to one or more XNNPACK operators; the exceptions are in ``_why_not_delegated``.
# fmt: off
_DELEGATED_OPS = frozenset((
    "Abs", "Add", "AveragePool", "Ceil", "Celu", "Clip", "Concat", "Conv", "ConvTranspose", "Cos", "DepthToSpace",
    "Div", "Elu", "Exp", "Expand", "Flatten", "Floor", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool",
    "GroupNormalization", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LayerNormalization",
    "LeakyRelu", "Log", "MatMul", "Max", "MaxPool", "Mean", "Min", "Mish", "Mul", "Neg", "PRelu", "Pad", "Pow",
    "Reciprocal", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare",
    "Relu", "Reshape", "Resize", "Selu", "Sigmoid", "Sin", "Slice", "Softmax", "Softplus", "Softsign", "SpaceToDepth",
    "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Unsqueeze",
))
# fmt: on
_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceSumSquare")
_UNSUPPORTED_DTYPES = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


@rule("Q131")
def qdq_around_float_kernel(subject: CheckInput) -> Iterator[Finding]:
    """The inputs and outputs of an operator are quantized, but XNNPACK computes it in float.

    ## What it finds
    In QDQ models: operators for which XNNPACK has no int8 kernel (activation-by-activation MatMul, Softmax, Gelu,
    Sigmoid, Pad, Resize and others) whose activations and outputs are all quantized.

    ## Why it matters
    XNNPACK dequantizes the inputs of the operator and quantizes its output again: two conversions and two roundings
    without any gain in speed. In a vision transformer this costs accuracy in every attention block.

    ## How to fix it
    Remove the Q/DQ pairs around the operator: it then reads and writes float, and the layers before and after it stay
    in int8. `dovetail fit` plans it this way.

    ## Seen on
    - xnnpack: executorch 1.5.1 with torch 2.13.0 and torchao 0.18.0, x86-64, serialized program read back: with Q/DQ
      pairs around them, BatchMatrixMultiply, Softmax, Gelu, Sigmoid, StaticConstantPad and StaticResizeBilinear2D read
      and write fp32, with a Convert before and after (the cases below, and
      tests/backends/xnnpack/test_rules.py for Resize).
    """
    for operation in operations(subject):
        if operation.in_integers and _float_only(operation.unit):
            yield Finding(
                "Q131",
                at_node(operation.node),
                f"{say(operation.node)} has quantized inputs and outputs, but XNNPACK computes it in float: "
                "the conversions around it cost accuracy and time",
                Severity.WARNING,
                fix="remove the Q/DQ pairs around it",
            )


def _float_only(unit: Unit) -> bool:
    return all(not slot.encoding.dtype.is_quantized for signature in unit.signatures for slot in signature.inputs)


@rule("Q431")
def operator_not_delegated(subject: CheckInput) -> Iterator[Finding]:
    """An operator is not delegated to XNNPACK and runs on the portable kernels of ExecuTorch.

    ## What it finds
    Operators that the XNNPACK partitioner does not delegate, in the lowering that `dovetail fit` uses: GridSample,
    TopK, a sum or a maximum over other axes than the last, a Slice whose step does not divide its axis, a Gather with
    indices that are not consecutive, Pow with another exponent than 0.5, 2 and 3, and every other operator that XNNPACK
    does not have and that cannot be written with the operators it has.

    `dovetail fit` rewrites layer norms, means and Softmax over any axes, Resize, Expand and Tile with operators that
    XNNPACK has, so they are not reported. A program that you lower with stock ExecuTorch leaves these outside as well:
    layer norms, means but those over the last two of four axes with keepdims, maxima, expand and repeat, nearest and
    cubic resizing. This rule does not list them.

    ## Why it matters
    The portable kernels are plain loops, and every such operator splits the program: the operators before and after it
    become separate delegates, with conversions and copies between them.

    ## How to fix it
    Replace the operator by one that XNNPACK has, for example slices instead of indices.

    ## Seen on
    - xnnpack: executorch 1.5.1 with torch 2.13.0, x86-64, lowered graphs: grid_sampler_2d, topk, slice_copy with a step
      and index_select are not delegated; neither are native_layer_norm, most means, amax, expand_copy, repeat,
      upsample_nearest2d and cubic resizing as torch lowers them, but they are as `dovetail fit` lowers them.
    """
    mapped = subject.table.only or frozenset()
    for node in subject.model.graph:
        why = _why_not_delegated(node)
        if why and is_op(node, *mapped):
            yield Finding(
                "Q431",
                at_node(node),
                f"{say(node)} is not delegated to XNNPACK: {why}",
                Severity.NOTE,
                fix="replace it by operators that XNNPACK has, or accept the portable kernel",
            )


@rule("Q432")
def operator_without_torch_mapping(subject: CheckInput) -> Iterator[Finding]:
    """An operator has no mapping to torch, so the model cannot be lowered.

    ## What it finds
    Operators for which Dovetail has no mapping from ONNX to torch (LSTM, NonMaxSuppression, RoiAlign and others).
    Operators outside ONNX are reported by Q108.

    ## Why it matters
    An ExecuTorch program is lowered from a torch graph. A model with one such operator cannot be lowered at all, and
    `dovetail fit` reports it only after calibration.

    ## How to fix it
    Write it with other operators, or split the model before it and run the rest
    outside ExecuTorch.

    ## Seen on
    - xnnpack: executorch 1.5.1 with torch 2.13.0, x86-64: the lowering fails with an error that names the node.
    """
    mapped = subject.table.only or frozenset()
    for node in subject.model.graph:
        if not node.domain and not is_op(node, *mapped, "QuantizeLinear", "DequantizeLinear"):
            yield Finding(
                "Q432",
                at_node(node),
                f"{say(node)} has no mapping to torch, so the model cannot be lowered",
                Severity.ERROR,
                fix="write it with other operators, or split the model before it",
            )


def _why_not_delegated(node: ir.Node) -> str:
    """Why an operator is not delegated; empty if it is."""
    if not is_op(node, *_DELEGATED_OPS):
        return "" if node.op_type in ("QuantizeLinear", "DequantizeLinear") else "XNNPACK has no such operator"
    if node.inputs[0] is not None and node.inputs[0].dtype in _UNSUPPORTED_DTYPES:
        return "XNNPACK does not compute int32, int64 or bool"
    shape, out = shape_of(node.inputs[0]) or (), shape_of(node.outputs[0]) or ()
    if is_op(node, "Resize") and (not shape or not out or len(shape) > MOST_AXES):
        return f"its shape is unknown, or has more than {MOST_AXES} axes"
    if is_op(node, "Pow") and not _has_kernel(node):
        return "XNNPACK supports only squares and square roots"
    if is_op(node, "MaxPool") and _skips(node):
        return "XNNPACK does not support pooling with a stride larger than the kernel"
    if is_op(node, "Slice") and _keeps_steps(node, shape):
        return "XNNPACK supports only slices with step 1"
    if is_op(node, *_REDUCTIONS) and not _over_the_last(node, len(shape)):
        return "XNNPACK supports sums and maxima over the last axes only"
    if is_op(node, "Gather") and not _is_consecutive(node):
        return "XNNPACK has no operator that selects elements by index"
    return ""


def _keeps_steps(node: ir.Node, shape: tuple[int, ...]) -> bool:
    """Whether a Slice has steps that are still there after its axis is split in two."""
    cuts = slice_ranges(node)
    if cuts is None or len(shape) >= MOST_AXES:
        steps = constant_of(node.inputs[4]) if len(node.inputs) > 4 else None
        return steps is not None and bool((steps != 1).any())
    return any(cut.step != 1 and not selects_one_per_step(shape[axis], cut) for axis, cut in cuts.items())


def _has_kernel(node: ir.Node) -> bool:
    exponent = constant_of(node.inputs[1])
    return exponent is not None and exponent.size == 1 and float(exponent.reshape(())) in POWERS


def _skips(node: ir.Node) -> bool:
    """Whether a pooling leaves out elements between its windows."""
    kernel = attribute(node, "kernel_shape", ())
    return any(step > size for step, size in zip(attribute(node, "strides", ()), kernel, strict=False))


def _over_the_last(node: ir.Node, rank: int) -> bool:
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes", None)
    axes = [] if axes is None else np.ravel(axes)
    dims = sorted(int(axis) % rank for axis in axes) if len(axes) else range(rank)
    return list(dims) == list(range(rank - len(dims), rank))


def _is_consecutive(node: ir.Node) -> bool:
    indices = constant_of(node.inputs[1])
    return indices is not None and bool((np.diff(indices.reshape(-1)) == 1).all())
