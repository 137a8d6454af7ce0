"""Q1 on HTP: operators that it lacks, or has in float only."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from dovetail.encoding import QParams
from dovetail.finding import Finding, Severity
from dovetail.model.place import at_node
from dovetail.plan.constraints import build_problem, op_key
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.rules.in_float import chip_of, runs_in_float

# onnxruntime-qnn 2.7.0 on SoC 43: one node of every operator in a float graph, the provider's log read.
_LACKING = frozenset(
    (
        "Acos",
        "Acosh",
        "AffineGrid",
        "Asin",
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
        "Unique",
        "com.microsoft::BiasGelu",
        "com.microsoft::FastGelu",
        "com.microsoft::FusedConv",
        "com.microsoft::MultiHeadAttention",
        "com.microsoft::SkipLayerNormalization",
    )
)
# Operators that read back into float although their inputs and outputs are stored in integers, 8 and 16 bit alike.
IN_FLOAT_ONLY = frozenset(
    (
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
        "com.microsoft::FusedMatMul",
        "com.microsoft::QuickGelu",
    )
)
_INSTEAD = {
    "Col2Im": "write the fold as Reshape, Transpose and Reshape where windows do not overlap",
    "Erf": "write the GELU around it as one Gelu (opset 20); `dovetail fit` does so where it recognises one",
    "com.microsoft::FastGelu": 'write it as Gelu with approximate="tanh"',
    "com.microsoft::MultiHeadAttention": "export without onnxruntime's transformer fusions, or write it as Attention "
    "(opset 23) or as MatMul, Softmax and MatMul",
    "com.microsoft::SkipLayerNormalization": "export without onnxruntime's transformer fusions: Add and "
    "LayerNormalization",
    "Mish": "write it as x * Tanh(Softplus(x))",
    "ReduceSumSquare": "write it as Mul and ReduceSum",
}


@rule("Q101")
def operator_that_htp_lacks(subject: CheckInput) -> Iterator[Finding]:
    """An operator does not exist on HTP, in no precision.

    ## What it finds
    Nodes whose operator the QNN execution provider does not take at all: Erf outside of a GELU, the fused operators of
    `com.microsoft` that onnxruntime's transformer optimizer leaves behind (MultiHeadAttention,
    SkipLayerNormalization), Col2Im, DeformConv, Mish and some thirty others. A float model is looked at after
    `dovetail fit`'s own rewrites, so that an Erf inside of a GELU is not found.

    ## Why it matters
    The node goes to the CPU with a copy there and back, or, with fallback forbidden, the model does not load. Nothing
    that `dovetail fit` does helps.

    ## How to fix it
    Write the operator in others that exist; the finding says how where a way is known. Otherwise cut the model there.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), compiled for SoC 43, every operator alone in a float graph:
      "Operators of type `Erf` are not supported by QNN EP". The cases are compiled in the tests.
    """
    for node in subject.model.graph.all_nodes():
        op = op_key(node)
        if op in _LACKING:
            yield Finding(
                "Q101",
                at_node(node),
                f"{say(node)}: HTP has no {op.replace('::', '.')}, in no precision",
                Severity.ERROR,
                fix=_INSTEAD.get(op, f"write {node.op_type} in operators that exist, or cut the model in front of it"),
            )


@rule("Q102")
def float_without_float16(subject: CheckInput) -> Iterator[Finding]:
    """An operator has to run in float on a chip that does not compute in float16.

    ## What it finds
    On targets without float16 (v68 parts such as qcs6490, and bare architectures such as v73, for which float16 needs
    an SoC number): operators that the model leaves in float and, in a float model, operators for which the target's
    table has no integer form. On a part that is every operator that computes; on a bare architecture only those for
    which the compiler has no float32 kernel either (Gelu, Gather, GridSample, ScatterND, Where and others).

    ## Why it matters
    A part refuses the node ("The SocModel doesn't support FP16"). On a bare architecture the compiler fails at the end
    with `MEM_ALLOC, Code: 1002`, which says nothing of memory: there is no kernel.

    ## How to fix it
    Store the inputs and outputs of the operator in integers, where it has an integer form. Where it has none, name a
    chip with float16 (`qnn-htp:sm8550` in place of `qnn-htp:v73`), or cut the model in front of it.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), for v73 and v68 without an SoC number: float Gelu, GridSample,
      Gather, ScatterND and 17 others fail with 1002; for SoC 93 every operator but Reshape and Transpose is refused.
      For SoC 43 all of them compile.
    - qnn-htp: an earlier measurement blamed int64 indices for the 1002 of a Gather; with 2.7.0 it is the float data:
      int32 and constant indices fail as well, and integer data compiles with int64 indices.
    """
    if chip_of(subject).has_float16:
        return
    for node in _float_nodes(subject):
        if not runs_in_float(chip_of(subject), op_key(node)):
            yield Finding(
                "Q102",
                at_node(node),
                f"{say(node)} has to run in float, for which {subject.table.target} has no kernel",
                Severity.ERROR,
                fix="store what it reads and writes in integers if it has an integer form; otherwise name a chip with "
                "float16, such as qnn-htp:sm8550, or cut the model there",
            )


def _float_nodes(subject: CheckInput) -> Iterator[ir.Node]:
    """The nodes that run in float, as is planned; without a plan, those that the table has in float only."""
    if subject.plan is None:
        for unit in build_problem(subject.model, subject.table).units:
            if unit.operands and unit.outputs and not any(s.output.dtype.is_quantized for s in unit.signatures):
                yield unit.nodes[0]
        return
    for operation in operations(subject):
        if operation.activations and not all(isinstance(s, QParams) for s in operation.activations + operation.outputs):
            yield operation.node


@rule("Q103")
def integers_around_float_operator(subject: CheckInput) -> Iterator[Finding]:
    """The inputs and outputs of an operator are stored in integers, but HTP has it in float only.

    ## What it finds
    In QDQ models: TopK, ScatterND, ReduceL2, GatherND, RoiAlign and a few others between DequantizeLinear
    and QuantizeLinear.

    ## Why it matters
    The simulation looks like integers, the compiled graph converts to float16 and back: slower, and not what was
    planned. On a chip without float16 some of them do not finalize (1002).

    ## How to fix it
    Leave the operator in float on purpose, so that the conversions are counted and nothing is claimed, or write it in
    others: ScatterND with constant indices as Concat of slices, ReduceL2 as Mul, ReduceSum and Sqrt. `dovetail fit`
    leaves these operators in float.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, every operator alone between 8-bit and 16-bit pairs: the
      dumped graph has Dequantize, the operator in float, Quantize.
    - qnn-htp: the same for v73 without an SoC number: ScatterND, and ReduceL2 in front of a 16-bit Div, fail with 1002.
    """
    slow = chip_of(subject).has_float16
    for operation in operations(subject):
        if operation.in_integers and operation.op in IN_FLOAT_ONLY:
            node = operation.node
            then = "Dequantize and Quantize go around it" if slow else f"{subject.table.target} has no float16 for that"
            yield Finding(
                "Q103",
                at_node(node),
                f"{say(node)} is stored in integers, but HTP runs it in float only: {then}",
                Severity.WARNING if slow else Severity.ERROR,
                fix=f"take the pairs around {node.op_type} away, or write it in operators that HTP runs on integers",
            )
