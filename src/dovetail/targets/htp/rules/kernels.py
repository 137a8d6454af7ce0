"""Q1 on HTP: operators that it does not support, or supports in float only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from dovetail.encoding import Granularity, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute
from dovetail.model.place import at_node
from dovetail.plan.constraints import op_key
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import Operation, operations, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.chips import chip_of
from dovetail.targets.htp.rules.in_float import runs_in_float

# onnxruntime-qnn 2.7.0 on SoC 43: one float graph per operator, compiled; the provider's log says "not supported".
NOT_SUPPORTED = frozenset(
    (
        "Acos",
        "Acosh",
        "AffineGrid",
        "Asinh",
        "Atanh",
        "BitShift",
        "Celu",
        "CenterCropPad",
        "Col2Im",
        "Compress",
        "Cosh",
        "DeformConv",
        "Det",
        "Erf",
        "GlobalLpPool",
        "Hardmax",
        "IsInf",
        "MeanVarianceNormalization",
        "Mish",
        "ReduceL1",
        "ReduceLogSum",
        "ReduceProd",
        "ReduceSumSquare",
        "ReverseSequence",
        "Shrink",
        "Sinh",
        "Softsign",
        "Trilu",
        "Unique",
    )
)
# Rejected in float, but not between Q/DQ pairs.
NOT_IN_FLOAT = frozenset(("Asin",))
# Operators that run in float even if their inputs and outputs are quantized, to 8 or to 16 bits.
IN_FLOAT_ONLY = frozenset(
    (
        "Cast",
        "GatherND",
        "LpPool",
        "Mean",
        "ReduceL2",
        "RoiAlign",
        "RotaryEmbedding",
        "ScatterND",
        "Selu",
        "Sum",
        "Tan",
        "ThresholdedRelu",
        "TopK",
    )
)
# A scale in a file has the digits of float32.
_SCALE_TOLERANCE = 1e-5
_REPLACEMENTS = {
    "Col2Im": "if the windows do not overlap, write the fold as Reshape, Transpose and Reshape",
    "Erf": "write the GELU that contains it as one Gelu (opset 20); `dovetail fit` does this if it recognizes it",
    "Mish": "write it as x * Tanh(Softplus(x))",
    "ReduceSumSquare": "write it as Mul and ReduceSum",
}


@rule("Q101")
def operator_not_supported_on_htp(subject: CheckInput) -> Iterator[Finding]:
    """HTP does not support an operator in any precision.

    ## What it finds
    Nodes whose operator the QNN execution provider does not support at all: Acos, Acosh, AffineGrid, Asinh, Atanh,
    BitShift, Celu, CenterCropPad, Col2Im, Compress, Cosh, DeformConv, Det, Erf, GlobalLpPool, Hardmax, IsInf,
    MeanVarianceNormalization, Mish, Mod with `fmod`, ReduceL1, ReduceLogSum, ReduceProd, ReduceSumSquare,
    ReverseSequence, Shrink, Sinh, Softsign, Trilu, Unique; and Asin in float, also in a float model, because `dovetail
    fit` does not quantize it. A float model is checked after the rewrites of `dovetail fit`, so an Erf that is part of
    a GELU is not reported. Operators outside ONNX are reported by Q108.

    ## Why it matters
    The node runs on the CPU, with a copy to the CPU and back, or, if CPU fallback is disabled, the model does not load.
    `dovetail fit` cannot work around it.

    ## How to fix it
    Replace the operator with supported ones; the finding says how if a replacement is known. Otherwise split the model
    before the operator.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43, one float graph per operator: "Operators of
      type `Erf` are not supported by QNN EP". All are compiled in tests/backends/qnn_htp/test_operators.py. ReduceProd
      and Mod are rejected between Q/DQ pairs as well; Asin agrees with the simulation to 88 dB in 16 bits.
    """
    quantized = {operation.node for operation in operations(subject) if operation.in_integers}
    for node in subject.model.graph.all_nodes():
        op = op_key(node)
        in_float = op in NOT_IN_FLOAT and node not in quantized
        if op in NOT_SUPPORTED or in_float or (op == "Mod" and attribute(node, "fmod", 0)):
            yield Finding(
                "Q101",
                at_node(node),
                f"{say(node)}: HTP does not support {op} in {'float' if in_float else 'any precision'}",
                Severity.ERROR,
                fix=_REPLACEMENTS.get(
                    op, f"replace {node.op_type} with supported operators, or split the model before it"
                ),
            )


@rule("Q102")
def float_operator_on_chip_without_float16(subject: CheckInput) -> Iterator[Finding]:
    """An operator must run in float on a target that does not support float16.

    ## What it finds
    On targets without float16 (v68 chips such as qcs6490, and targets that name only an architecture such as v73,
    because float16 requires an SoC number): operators that the model leaves in float and, in a float model, operators
    for which the target has no integer kernel. On a chip this is every operator except those that only change the shape
    or layout. On an architecture without a chip it is only the operators that have no float32 kernel either: Atan,
    CumSum, Elu, Gather, GatherElements, Gelu, GridSample, HardSigmoid, InstanceNormalization, LpNormalization,
    RMSNormalization, ReduceLogSumExp, RoiAlign, RotaryEmbedding, Round, ScatterElements, ScatterND, Selu,
    ThresholdedRelu and Where.

    ## Why it matters
    For a chip, the compiler rejects the node ("The SocModel doesn't support FP16"). For an architecture, it fails when
    it finalizes the graph, with `MEM_ALLOC, Code: 1002`. Despite its name this error is not about memory: the kernel
    does not exist.

    ## How to fix it
    If the operator has an integer kernel, quantize its inputs and outputs. If not, choose a chip with float16
    (`qnn-htp:sm8550` instead of `qnn-htp:v73`), or split the model before the operator.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), for v73 and v68 without an SoC number: the operators listed
      above fail with 1002; for SoC 93 every operator but Reshape and Transpose is rejected.
      For SoC 43 all of them compile.
    - qnn-htp: an earlier measurement attributed the 1002 of a Gather to int64 indices. With 2.7.0 the cause is the
      float data: int32 and constant indices fail as well, and quantized data compiles with int64 indices.
    """
    if chip_of(subject).has_float16:
        return
    for node in _float_nodes(subject):
        if not runs_in_float(chip_of(subject), op_key(node)):
            yield Finding(
                "Q102",
                at_node(node),
                f"{say(node)} must run in float, for which {subject.table.target} has no kernel",
                Severity.ERROR,
                fix="quantize its inputs and outputs if it has an integer kernel; otherwise choose a chip with "
                "float16, such as qnn-htp:sm8550, or split the model before it",
            )


def _float_nodes(subject: CheckInput) -> Iterator[ir.Node]:
    """Yield the nodes that run in float according to the plan or, without a plan, according to the op table."""
    if subject.plan is None:
        for unit in subject.problem.units:
            if unit.operands and unit.outputs and not any(s.output.dtype.is_quantized for s in unit.signatures):
                yield unit.nodes[0]
        return
    for operation in operations(subject):
        if operation.activations and not all(isinstance(s, QParams) for s in operation.activations + operation.outputs):
            yield operation.node


@rule("Q103")
def quantized_float_only_operator(subject: CheckInput) -> Iterator[Finding]:
    """The inputs and outputs of an operator are quantized, but HTP runs the operator in float only.

    ## What it finds
    In QDQ models: Cast, GatherND, LpPool, Mean, ReduceL2, RoiAlign, RotaryEmbedding, ScatterND, Selu, Sum, Tan,
    ThresholdedRelu and TopK between DequantizeLinear and QuantizeLinear; and operators without a float output after
    DequantizeLinear: a Cast to integers, a TopK of which only the indices are used (IsNaN: Q406).

    ## Why it matters
    The QDQ graph describes an integer operator, but the compiled graph converts to float16 and back. It is slower than
    planned. On a target without float16 some of these operators cannot be finalized (error 1002).

    ## How to fix it
    Keep the operator in float explicitly, so that the plan shows the conversions, or replace it: write ScatterND with
    constant indices as a Concat of slices, and ReduceL2 as Mul, ReduceSum and Sqrt. `dovetail fit` keeps these
    operators in float.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, between 8-bit and between 16-bit Q/DQ pairs: for each of
      them the dumped graph has Dequantize, the operator in float, Quantize
      (tests/backends/qnn_htp/test_operators.py).
    - qnn-htp: the same for v73 without an SoC number: ScatterND, and ReduceL2 before a 16-bit Div, fail with 1002.
    """
    has_float16 = chip_of(subject).has_float16
    for operation in operations(subject):
        if operation.is_quantized and operation.op in IN_FLOAT_ONLY:
            node = operation.node
            effect = "the compiler inserts Dequantize and Quantize around it"
            if not has_float16:
                effect = f"{subject.table.target} does not support float16"
            yield Finding(
                "Q103",
                at_node(node),
                f"{say(node)} is quantized, but HTP runs it in float only: {effect}",
                Severity.WARNING if has_float16 else Severity.ERROR,
                fix=f"remove the Q/DQ pairs around {node.op_type}, or replace it with operators that run in integers",
            )


@rule("Q109")
def output_quantization_replaced(subject: CheckInput) -> Iterator[Finding]:
    """HTP replaces the scale and zero point of an operator's output with its own.

    ## What it finds
    In QDQ models: Sigmoid and HardSigmoid whose uint16 output has another scale than 1/65536 or another zero point than
    0, and Tanh whose uint16 output has another scale than 1/32768 or another zero point than 32768.

    ## Why it matters
    The provider silently replaces them, in the output of the operator and in all that reads it. The simulation rounds
    and clips on another grid than the chip.

    ## How to fix it
    Quantize the output of Sigmoid and HardSigmoid with scale 1/65536 and zero point 0, that of Tanh with 1/32768 and
    32768. `dovetail fit` does this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, dumped graphs, 16 bits: scales of 1.3e-05 to 1.5e-05 became
      1/65536 (Sigmoid, HardSigmoid) and 1/32768 (Tanh). At 8 bits they are kept.
    """
    for operation in operations(subject):
        replaced = replaced_output(operation, _SCALE_TOLERANCE)
        if replaced is not None:
            yield Finding(
                "Q109",
                at_node(operation.node),
                f"{say(operation.node)} has an output with {replaced.text}, which HTP replaces with {replaced.by}",
                Severity.WARNING,
                replaced.numbers,
                f"quantize it with {replaced.by}",
            )


class ReplacedOutput(NamedTuple):
    """The scale and zero point of an output, those that HTP has in their place, and both scales."""

    text: str
    by: str
    numbers: dict[str, float]


def replaced_output(operation: Operation, tolerance: float) -> ReplacedOutput | None:
    """The qparams that HTP replaces, if the scales differ by more than a relative ``tolerance``, or the zero points."""
    if not operation.in_integers or operation.unit.support is None:
        return None
    output = operation.outputs[0]
    fixed = next((f for f in operation.unit.support.fixed if f.dtype is output.dtype), None)
    if fixed is None or not isinstance(output, QParams) or output.encoding.granularity is not Granularity.TENSOR:
        return None
    scale, zero_point = float(output.scale), int(output.zero_point)
    if math.isclose(scale, fixed.scale, rel_tol=tolerance) and zero_point == fixed.zero_point:
        return None
    text = f"scale {scale:.6g} and zero point {zero_point}"
    by = f"scale {fixed.scale:.6g} and zero point {fixed.zero_point}"
    return ReplacedOutput(text, by, {"scale": scale, "replaced_by": fixed.scale})
