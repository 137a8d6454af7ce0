"""Q1 and Q4 on XNNPACK: integers where it computes in float, and operators that it does not have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.place import at_node
from dovetail.model.slices import MOST_AXES, cuts_of, takes_one_of_each
from dovetail.plan.constraints import Unit
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, say
from dovetail.rules.rule import rule

# What becomes one operator of XNNPACK, or several of them; the exceptions are in ``_outside``.
# fmt: off
_INSIDE = frozenset((
    "Abs", "Add", "AveragePool", "Ceil", "Clip", "Concat", "Conv", "ConvTranspose", "Cos", "DepthToSpace", "Div",
    "Exp", "Expand", "Flatten", "Floor", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "GroupNormalization",
    "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log",
    "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg", "Pad", "ReduceL2", "ReduceMean", "ReduceSum", "Relu",
    "Reshape", "Resize", "Sigmoid", "Sin", "Slice", "Softmax", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub",
    "Tanh", "Tile", "Transpose", "Unsqueeze",
))
# fmt: on
_NOT_COMPUTED = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


@rule("Q131")
def integers_around_float_kernel(subject: CheckInput) -> Iterator[Finding]:
    """The inputs and outputs of an operator are stored in integers, but XNNPACK computes it in float.

    ## What it finds
    In QDQ models: operators for which XNNPACK has no int8 kernel (products of two activations, Softmax, Gelu, Sigmoid,
    Pad, Resize and others) with every activation and every result stored in integers.

    ## Why it matters
    The integers are read back in front of the operator and made again behind it: two conversions and two roundings
    that buy nothing. In a vision transformer this costs accuracy in every attention.

    ## How to fix it
    Take the pairs around the operator out: what is in front and behind stays in integers, the operator reads and writes
    float. `dovetail fit` plans it so.

    ## Seen on
    - xnnpack: executorch 1.5.1 with torch 2.13.0 and torchao 0.18.0, x86-64, serialized program read back: between
      forced pairs BatchMatrixMultiply, Softmax, Gelu, Sigmoid, StaticConstantPad and StaticResizeBilinear2D read and
      write fp32, with a Convert in front and behind.
    """
    for operation in operations(subject):
        if operation.in_integers and _float_only(operation.unit):
            yield Finding(
                "Q131",
                at_node(operation.node),
                f"{say(operation.node)} reads and writes integers, but XNNPACK computes it in float: "
                "the conversions around it cost accuracy and time",
                Severity.WARNING,
                fix="take the pairs around it out",
            )


def _float_only(unit: Unit) -> bool:
    return all(not slot.encoding.dtype.is_quantized for each in unit.signatures for slot in each.inputs)


@rule("Q431")
def operator_outside_xnnpack(subject: CheckInput) -> Iterator[Finding]:
    """An operator runs outside XNNPACK, on the portable kernels of ExecuTorch.

    ## What it finds
    Operators that the XNNPACK partitioner leaves out, in the form in which `dovetail fit` would lower them:
    GridSample, TopK, ReduceMax, a Slice with steps that do not divide its axis, a Gather of indices that do not follow
    each other, cubic Resize and nearest by other than whole factors, and everything else for which XNNPACK has no
    operator, and which cannot be written in those it has. (Layer norms, means and Softmax over any axes, Expand and
    Tile can: `dovetail fit` does it.)

    ## Why it matters
    The portable kernels are plain loops, and every such operator cuts the program in two: what is in front and behind
    are delegates of their own, with conversions and copies between them.

    ## How to fix it
    Where it can be said otherwise, say it so: linear in place of cubic, slices in place of indices.

    ## Seen on
    - xnnpack: executorch 1.5.1 with torch 2.13.0, x86-64, lowered graphs: grid_sampler_2d, topk, amax, slice_copy with
      a step, index_select, upsample_nearest2d and all parts of cubic resizing stay outside the delegates; so do
      native_layer_norm, most means, expand_copy and repeat as torch writes them, but not as we do.
    """
    forms = subject.table.only or frozenset()
    for node in subject.model.graph:
        why = _outside(node)
        if why and is_op(node, *forms):
            yield Finding(
                "Q431",
                at_node(node),
                f"{say(node)} runs outside XNNPACK: {why}",
                Severity.NOTE,
                fix="replace it by operators that XNNPACK has, or accept the portable kernel",
            )


@rule("Q432")
def operator_without_torch_form(subject: CheckInput) -> Iterator[Finding]:
    """An operator has no form in torch here, so that no program can be made.

    ## What it finds
    Operators that the step from ONNX to torch does not have (Celu, Mish, NonMaxSuppression and others), of the standard
    domain or of any other.

    ## Why it matters
    An ExecuTorch program is made from a torch graph: one such operator, and there is none. `dovetail fit` says so only
    after calibration.

    ## How to fix it
    Say it in other operators (Celu by Exp, Min and Relu), or cut the model in front of it and run the rest
    elsewhere.

    ## Seen on
    - xnnpack: executorch 1.5.1 with torch 2.13.0, x86-64: the lowering is refused, naming the node.
    """
    forms = subject.table.only or frozenset()
    for node in subject.model.graph:
        if not is_op(node, *forms, "QuantizeLinear", "DequantizeLinear"):
            yield Finding(
                "Q432",
                at_node(node),
                f"{say(node)} has no form in torch here: no program can be made of the model",
                Severity.ERROR,
                fix="say it in other operators, or cut the model in front of it",
            )


def _outside(node: ir.Node) -> str:
    """Why an operator stays outside; empty if it does not."""
    if not is_op(node, *_INSIDE):
        return "" if node.op_type in ("QuantizeLinear", "DequantizeLinear") else "it has no such operator"
    if node.inputs[0] is not None and node.inputs[0].dtype in _NOT_COMPUTED:
        return "it takes no such integers"
    shape, out = shape_of(node.inputs[0]) or (), shape_of(node.outputs[0]) or ()
    mode = attribute(node, "mode", "nearest")
    if is_op(node, "Resize") and mode != "linear" and not (mode == "nearest" and _repeats(shape, out)):
        return "it resizes linearly, or repeats every element equally often"
    if is_op(node, "AveragePool") and attribute(node, "ceil_mode", 0) and not _divides(node, shape):
        return "it takes no sizes that are rounded up"
    if is_op(node, "Slice") and _leaves_steps(node, shape):
        return "it takes slices with a step of one only"
    if is_op(node, "ReduceL2", "ReduceSum") and not _over_the_last(node, len(shape)):
        return "it has sums over the last axes only"
    if is_op(node, "Gather") and not _is_run(node):
        return "it does not choose elements by index"
    return ""


def _leaves_steps(node: ir.Node, shape: tuple[int, ...]) -> bool:
    """Whether a Slice has steps that do not go away when its axis is taken apart."""
    cuts = cuts_of(node)
    if cuts is None or len(shape) >= MOST_AXES:
        steps = constant_of(node.inputs[4]) if len(node.inputs) > 4 else None
        return steps is not None and bool((steps != 1).any())
    return any(taken.step != 1 and not takes_one_of_each(shape[axis], taken) for axis, taken in cuts.items())


def _repeats(shape: tuple[int, ...], out: tuple[int, ...]) -> bool:
    """Whether a Resize by nearest repeats every element equally often."""
    known = 0 < len(shape) == len(out) and 0 not in shape
    return known and all(after % before == 0 for before, after in zip(shape, out, strict=True))


def _divides(node: ir.Node, shape: tuple[int, ...]) -> bool:
    """Whether rounding the sizes of a pooling up makes no difference."""
    kernel = attribute(node, "kernel_shape", ())
    strides, pads = attribute(node, "strides", [1] * len(kernel)), attribute(node, "pads", [0] * 2 * len(kernel))
    sides = zip(shape[2:], kernel, strides, pads[: len(kernel)], pads[len(kernel) :], strict=False)
    return bool(shape) and not any((size + one + other - window) % step for size, window, step, one, other in sides)


def _over_the_last(node: ir.Node, rank: int) -> bool:
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes", None)
    dims = range(rank) if axes is None or not len(axes) else sorted(int(axis) % rank for axis in axes)
    return list(dims) == list(range(rank - len(dims), rank))


def _is_run(node: ir.Node) -> bool:
    indices = constant_of(node.inputs[1])
    return indices is not None and bool((np.diff(indices.reshape(-1)) == 1).all())
