"""Q6 on HTP: ranks, axes, equations and groups for which an operator is rejected."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute, constant_of, is_op, shape_of
from dovetail.model.origin import origin_of
from dovetail.model.place import at_node
from dovetail.passes.ungroup_conv_transpose import is_grouped
from dovetail.plan.constraints import op_key
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, say
from dovetail.rules.rule import rule

_NORM_RANK = 4


@rule("Q603")
def unsupported_layer_norm_rank_or_axis(subject: CheckInput) -> Iterator[Finding]:
    """A LayerNormalization has more than four dimensions, or does not normalize over the last axis only.

    ## What it finds
    LayerNormalization of rank 5 or more, or with an `axis` other than the last. A float model is checked after the
    rewrites of `dovetail fit`: a LayerNormalization that they bring to rank 3 is not reported.

    ## Why it matters
    HTP supports most operators up to rank 5, but this one only up to rank 4 ("incorrect Rank 5"), and "only supports
    normalization along the last axis". The node runs on the CPU, or the model does not load.

    ## How to fix it
    Rank: insert a Reshape to [rows, channels] before it and a Reshape back after it; the results are the same. Axis:
    merge the normalized axes into one with a Reshape, or move the normalized axis to the end with a Transpose.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43, in float and between Q/DQ pairs: rank 5 and
      axis -2 are rejected; rank 2 to 4 over the last axis compile.
    """
    for node in subject.model.graph.all_nodes():
        shape = node.inputs[0].shape if is_op(node, "LayerNormalization") and node.inputs[0] is not None else None
        if shape is None:
            continue
        rank, axis = len(shape), int(attribute(node, "axis", -1))
        if rank > _NORM_RANK:
            yield Finding(
                "Q603",
                at_node(node),
                f"{say(node)} has {rank} dimensions, HTP supports at most {_NORM_RANK} for it",
                Severity.ERROR,
                {"rank": float(rank)},
                "insert a Reshape to rank 3 before it and a Reshape back after it",
            )
        elif axis not in (-1, rank - 1):
            yield Finding(
                "Q603",
                at_node(node),
                f"{say(node)} normalizes from axis {axis} of {rank} dimensions, HTP supports only the last axis",
                Severity.ERROR,
                {"axis": float(axis), "rank": float(rank)},
                "merge the normalized axes with a Reshape, or move the normalized axis to the end with a Transpose",
            )


@rule("Q604")
def unsupported_einsum_equation(subject: CheckInput) -> Iterator[Finding]:
    """An Einsum has an equation that HTP does not support.

    ## What it finds
    Einsum with any equation except the supported ones: `ik,kj->ij` and `ik,jk->ij`, also with equal letters before
    all three terms, as in `bhik,bhkj->bhij`; `bchq,bkhc->bkhq` and `bhwc,hkc->bhwk`, which become a MatMul as well; and
    `bhwc,wkc->bhwk` in float only. The letters do not matter; an ellipsis is rejected in every equation. A float model
    is checked after the rewrites of `dovetail fit`, which replace most equations with other operators.

    ## Why it matters
    Attention scores as `bqhd,bkhd->bhqk` (heads after tokens) and mask heads as `bqc,bchw->bqhw` are rejected: the node
    runs on the CPU, or the model does not load.

    ## How to fix it
    Write it as Transpose, Reshape and MatMul.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43, in float and between 16-bit Q/DQ pairs:
      `bqhd,bkhd->bhqk` is rejected with "unsupported equation", `bqc,bchw->bqhw` with "MatMul failed 3110",
      `bhwc,wkc->bhwk` with "unsupported equation for quantized inputs"; the equations listed above compile, also in
      capital letters. `...ik,...kj->...ij`, `...ik,...jk->...ij`, `b...ik,b...kj->b...ij` and `...i,ij->...j` are
      rejected.
    """
    for node in subject.model.graph.all_nodes():
        if not is_op(node, "Einsum"):
            continue
        equation = str(attribute(node, "equation", ""))
        choice = None if subject.plan is None else subject.plan.tensors.get(node.outputs[0].name or "")
        in_float = choice is None or not isinstance(choice.storage, QParams)
        if second_matmul_operand(equation) is None and not (in_float and _is_multiply_and_sum(equation)):
            yield Finding(
                "Q604",
                at_node(node),
                f"{say(node)}: HTP does not support the equation {equation!r}{'' if in_float else ' in integers'}",
                Severity.ERROR,
                fix="write it as Transpose, Reshape and MatMul; `dovetail fit` does this for a float model",
            )


def second_matmul_operand(equation: str) -> int | None:
    """The index of the operand that becomes the second one of HTP's MatMul; None if the equation is not supported."""
    terms = _terms(equation)
    if terms is None:
        return None
    first, second, result = terms
    if len(first) == len(second) == len(result):
        stacked = first[:-2] == second[:-2] == result[:-2]
        rows, inner = first[-2], first[-1]
        if stacked and second[-2:] in (inner + result[-1], result[-1] + inner) and result[-2] == rows:
            return 1
        if len(first) == 4 and _has_heads_between(first, second, result):
            return 0
    windows = len(first) == len(result) == 4 and len(second) == 3
    if windows and first[:3] == result[:3] and second == first[1] + result[3] + first[3]:
        return 1
    return None


def _has_heads_between(first: str, second: str, result: str) -> bool:
    """``bchq,bkhc->bkhq``: the heads are between rows and columns."""
    batch, inner, heads, columns, rows = first[0], first[1], first[2], first[3], second[1]
    return second == batch + rows + heads + inner and result == batch + rows + heads + columns


def _is_multiply_and_sum(equation: str) -> bool:
    """``bhwc,wkc->bhwk``, which the provider translates to Mul and ReduceSum, in float only."""
    terms = _terms(equation)
    if terms is None or [len(term) for term in terms] != [4, 3, 4]:
        return False
    first, second, result = terms
    return first[:3] == result[:3] and second == first[2] + result[3] + first[3]


def _terms(equation: str) -> tuple[str, str, str] | None:
    """Split ``ij,jk->ik`` into its three terms; None unless each has at least two letters, all different."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    terms = [*operands, result]
    plain = all(term.isalpha() and len(term) > 1 and len(set(term)) == len(term) for term in terms)
    return (operands[0], operands[1], result) if arrow and len(operands) == 2 and plain else None


@rule("Q605")
def grouped_conv_transpose(subject: CheckInput) -> Iterator[Finding]:
    """A quantized ConvTranspose has groups of several channels, which HTP rejects or computes wrongly.

    ## What it finds
    In QDQ models: ConvTranspose with a constant weight, more than one group, and more than one input or output channel
    per group. Depthwise ones, with one channel per group, are supported. A float model is checked after the rewrites of
    `dovetail fit`.

    ## Why it matters
    With a bias the model does not load: "has incorrect Value 8, expected equal to 4". Without one it compiles, and the
    output is wrong. HTP expects one scale for each output channel, but the groups of an ONNX weight share theirs.

    ## How to fix it
    Write it without groups: a weight with zeros between the channels of different groups gives the same output.
    `dovetail fit` and `dovetail repair` do this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43, 16 bits: 8 channels in 2 groups, and 8 groups
      of one input and two output channels, with bias, are rejected; in float16 they compile (69 dB). Without bias 4
      channels in 2 groups agree with the simulation to 7 dB. Written without groups 69 dB and more.
    - qnn-htp: vendor's estimate for SoC 52, 64 channels in 16 groups, 4 x 4, stride 2, 16 x 16, 16 bits: 58 us without
      groups, 125 us as one ConvTranspose per group and a Concat; with 2 groups of 2 x 2 and 32 x 32 125 and 124 us.
    """
    for operation in operations(subject):
        if is_grouped(operation.node) and operation.in_integers:
            yield Finding(
                "Q605",
                at_node(operation.node),
                f"{say(operation.node)} has groups of several channels, which HTP rejects or computes wrongly",
                Severity.ERROR,
                fix="write it without groups, with zeros in the weight; `dovetail fit` and `dovetail repair` do this",
            )


@rule("Q606")
def operator_with_unknown_shape(subject: CheckInput) -> Iterator[Finding]:
    """An operator of a quantized model reads or writes a tensor whose shape the compiler does not know.

    ## What it finds
    In QDQ models: every operator with such a tensor, from the one that Q601 reports to the next Reshape with constant
    sizes. Most often a size is computed from constants, and a tool quantized the computation: with a Q/DQ pair in
    between, nothing can be folded, although the float model has fixed shapes.

    ## Why it matters
    The compiler must know all shapes. These operators run on the CPU, in float, or, if CPU fallback is disabled, the
    model does not load.

    ## How to fix it
    Fold the constants of the float model before it is quantized (`onnxsim`, or `dovetail fit`), or exclude the
    operators that compute sizes from quantization.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: MobileViT as onnxruntime's quantizer exports it, with Q/DQ
      pairs around the Ceil and Mul that compute the size of its patches, and YOLOv8n, with Q/DQ pairs around the Range
      of its anchors: 141 and 47 operators are placed on the CPU.
    """
    for node in subject.model.graph if subject.plan is not None else ():
        unknown = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name and shape_of(v) is None]
        if unknown:
            yield Finding(
                "Q606",
                at_node(node),
                f"{say(node)} runs on the CPU: the compiler does not know the shape of {origin_of(unknown[0]).name!r}",
                Severity.ERROR,
                fix="fold the constants of the float model before it is quantized",
            )


# "incorrect Rank 5" between Q/DQ pairs and in float, or no kernel when the graph is finalized.
RANK_4 = frozenset(
    (
        *(
            "ArgMax",
            "ArgMin",
            "Atan",
            "Ceil",
            "Cos",
            "CumSum",
            "Elu",
            "Floor",
            "InstanceNormalization",
            "Log",
            "LogSoftmax",
            "LpNormalization",
            "Neg",
        ),
        *("ReduceL2", "Round", "ScatterElements", "Sign", "Sin", "Softplus", "Sqrt", "Tanh"),
    )
)
# In float it has a kernel of rank 5.
RANK_4_IN_INTEGERS = frozenset(("Gelu",))
# In 8 bits it has one.
RANK_5_IN_8_BITS = frozenset(("CumSum",))
_HIGHEST = 4


@rule("Q607")
def operator_without_kernel_of_rank_5(subject: CheckInput) -> Iterator[Finding]:
    """An operator has five dimensions, and HTP has no kernel of rank 5 for it.

    ## What it finds
    In QDQ models and in float models after the rewrites of `dovetail fit`: Neg, Sqrt, Sin, Cos, Tanh, Log, LogSoftmax,
    Softplus, Elu, Ceil, Floor, Round, Sign, Atan, ArgMax, ArgMin, InstanceNormalization, LpNormalization, ReduceL2 and
    ScatterElements of rank 5; CumSum of rank 5 in float and in 16 bits; Gelu of rank 5 between Q/DQ pairs; PRelu after
    a three-dimensional Conv or ConvTranspose; ReduceMin of rank 5 over several axes, between Q/DQ pairs only if one of
    them is the first; and MatMul of rank 5 by a constant without a bias (an Add after it makes it a linear layer, which
    compiles). LayerNormalization has rule Q603.

    ## Why it matters
    HTP supports most operators up to rank 5, but these only up to rank 4. The node runs on the CPU, or the model does
    not load.

    ## How to fix it
    Merge dimensions with a Reshape before the operator, and split them again after it. `dovetail fit` does this for
    operators that compute every element alone.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, [1,2,4,3,8], one graph with all of them, in float, 8 and 16
      bits (tests/backends/qnn_htp/test_operators.py): "has incorrect Rank 5"; Softplus "with input rank > 4"; Sign in
      float "could not create op: q::ElementWiseSign_fp16"; ReduceMin over all axes "could not create op: q::Min_5D",
      but right over one axis and, in integers, over 3 and 4, 2 to 4 and 1 to 4. InstanceNormalization "only supports
      input ranks"; PRelu after a Conv or ConvTranspose "ForceFormat_Crouton", after an Add it is accepted. Abs, Add,
      Clip, Concat, Div, Exp, Mul, Pad, ReduceMax, ReduceMean, ReduceSum, Relu, Sigmoid, Slice, Softmax, Sub, Transpose
      and Where of rank 5 are accepted.
    """
    quantized = {op.node: op.outputs[0].dtype for op in operations(subject) if op.in_integers}
    with_bias = {op.node for op in operations(subject) if op.op == "Gemm"}
    for node in subject.model.graph:
        ranks = [len(shape) for v in (*node.inputs[:1], *node.outputs) if (shape := shape_of(v)) is not None]
        rank = max(ranks, default=0)
        limited = _is_limited(node, quantized.get(node))
        by_constant = is_op(node, "MatMul") and node not in with_bias and constant_of(node.inputs[1]) is not None
        if rank > _HIGHEST and (limited or by_constant):
            yield Finding(
                "Q607",
                at_node(node),
                f"{say(node)} has {rank} dimensions, HTP supports at most {_HIGHEST} for it",
                Severity.ERROR,
                {"rank": float(rank)},
                "merge dimensions with a Reshape before it, and split them again after it",
            )


def _is_limited(node: ir.Node, integers: DType | None) -> bool:
    """Whether an operator that computes in these integers, or in float, has no kernel of rank 5."""
    op = op_key(node)
    if op == "ReduceMin":
        axes = _reduced_axes(node)
        return len(axes) > 1 and (integers is None or 0 in axes)
    if op == "PRelu":
        layer = node.inputs[0].producer() if node.inputs[0] is not None else None
        return layer is not None and is_op(layer, "Conv", "ConvTranspose")
    if op in RANK_5_IN_8_BITS and integers is not None and integers.bits == 8:
        return False
    return op in RANK_4 or (op in RANK_4_IN_INTEGERS and integers is not None)


def _reduced_axes(node: ir.Node) -> set[int]:
    """The axes of a reduction, all if none are given or they are not constant."""
    shape = shape_of(node.inputs[0])
    rank = 0 if shape is None else len(shape)
    given = attribute(node, "axes", None) if len(node.inputs) < 2 else constant_of(node.inputs[1])
    axes = list(range(rank)) if given is None else [int(axis) % rank for axis in np.ravel(given)] if rank else []
    return set(axes or range(rank))
