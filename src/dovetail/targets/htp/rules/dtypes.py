"""Q1 on HTP: combinations of dtypes for which an operator has no integer kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute
from dovetail.model.place import at_node
from dovetail.op_support import OpTable
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import LINEAR, Operation, dtype_text, operations, original_name, say
from dovetail.rules.rule import rule
from dovetail.storage import Storage
from dovetail.targets.htp.chips import Chip, chip_of
from dovetail.targets.htp.rules.in_float import float_fallback_severity, float_fallback_text
from dovetail.targets.htp.rules.kernels import IN_FLOAT_ONLY
from dovetail.targets.htp.rules.norms import NORMS
from dovetail.targets.htp.rules.shapes import second_matmul_operand
from dovetail.targets.htp.table import why_not_wide_prelu

_16_BIT = (DType.U16, DType.S16)
# Operators whose constants must have the dtype of the other inputs and the output.
_ELEMENTWISE = frozenset(("Add", "Concat", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub"))
# Operators whose first input alone must match the output: the dtypes of the others are checked by separate rules.
_FIRST_ONLY = LINEAR | NORMS | {"Einsum"}


@rule("Q104")
def unsupported_16_bit_matmul_operand(subject: CheckInput) -> Iterator[Finding]:
    """The second operand of an activation-by-activation MatMul has a 16-bit quantization that HTP does not support.

    ## What it finds
    In QDQ models: a MatMul of two activations, or an Einsum, with a second operand in one of these quantizations:

    - uint16 (for an Einsum: uint16 with a zero point other than 32768),
    - int16 with a zero point other than 0,
    - 16-bit on an architecture before v73,
    - 16-bit while the first operand is 8-bit.

    ## Why it matters
    QK^T and the MatMul of attention weights and V are such operators. The compiler silently converts a uint16 second
    operand to uint8: the simulation computes with 16 bits, the chip with 8. It rejects the other
    combinations. The message "expected equal to -32768" is about an Einsum whose uint16 operand has a zero point other
    than 32768: QNN stores the zero point as a negative offset.

    ## How to fix it
    Quantize the second operand to 8 bit or, from v73 on, to int16 with zero point 0. If other consumers need the uint16
    tensor, insert this Q/DQ pair between its uint16 Q/DQ pair and the MatMul. `dovetail fit` plans 8 bit or int16 for
    every such MatMul.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: uint16 x uint16 gets a Convert to uint8 in the dumped graph
      and agrees with the simulation to 41 dB; with a symmetric int16 operand it is 70 to 77 dB. v68 and v69 also
      convert uint16, and reject int16 ("expected >= 73").
    """
    for operation in operations(subject):
        if not operation.in_integers or operation.op not in ("MatMul", "Einsum"):
            continue
        index = _second_operand_index(operation)
        second = None if index is None else operation.input_at(index)
        first = None if index is None else operation.input_at(1 - index)
        if second is None or first is None or first[0].constant or (second[0].constant and operation.op == "MatMul"):
            continue
        problem = _operand_problem(operation, second[1], first[1], subject.table)
        if problem is not None:
            severity, message = problem
            name = original_name(second[0])
            yield Finding(
                "Q104",
                at_node(operation.node, second[0].edge),
                f"{say(operation.node)} has the second operand {name!r} in {dtype_text(second[1])}: {message}",
                severity,
                fix=f"quantize {name!r} to uint8 at this input{_or_int16(subject.table)}",
            )


def _second_operand_index(operation: Operation) -> int | None:
    return 1 if operation.op == "MatMul" else second_matmul_operand(str(attribute(operation.node, "equation", "")))


def _operand_problem(
    operation: Operation, second: Storage, first: Storage, table: OpTable
) -> tuple[Severity, str] | None:
    """What the compiler does with a 16-bit second operand; None if it uses the operand as it is."""
    if not isinstance(second, QParams) or second.dtype not in _16_BIT:
        return None
    if first.dtype not in _16_BIT:
        return Severity.ERROR, f"HTP rejects it with a first operand in {dtype_text(first)}"
    if operation.op == "MatMul" and second.dtype is DType.U16:
        return Severity.WARNING, "HTP silently converts it to uint8"
    if not _supports_16_bit(table):
        return Severity.ERROR, f"{table.target} supports only an 8-bit second operand"
    if not second.encoding.symmetric:
        return Severity.ERROR, f"HTP rejects its zero point {int(second.zero_point)}, the operand must be symmetric"
    return None


def _supports_16_bit(table: OpTable) -> bool:
    slots = [signature.slot(1) for signature in table.ops["MatMul"].signatures]
    return any(slot is not None and slot.encoding.dtype is DType.S16 and not slot.constant for slot in slots)


def _or_int16(table: OpTable) -> str:
    return ", or to int16 with zero point 0" if _supports_16_bit(table) else ""


@rule("Q105")
def mixed_dtypes_at_operator(subject: CheckInput) -> Iterator[Finding]:
    """The inputs and outputs of a quantized operator have different dtypes, or one of its constants is float.

    ## What it finds
    In QDQ models: operators whose quantized inputs and outputs differ in bit width or signedness (a MatMul from uint8
    to uint16, a Gemm from uint16 to int16, GridSample with uint8 data and a uint16 grid, Add of uint8 and uint16); and
    elementwise operators, Concat, Conv, Gemm and MatMul with a constant that is not quantized. Operators that only
    move data are covered by Q301, the second operand of an activation-by-activation MatMul by Q104.

    ## Why it matters
    HTP's integer kernels require the same dtype for inputs and outputs. Otherwise the provider silently builds a
    float operator between Dequantize and Quantize, which is slower. An operator with an int32 bias or per-channel
    weights is rejected instead, because these cannot be dequantized on their own; and on a target without float16 the
    float kernel may not exist (GridSample: error 1002).

    ## How to fix it
    Quantize inputs, constants and outputs to one dtype. To change the bit width, add a second Q/DQ pair after the one
    on the operator's output. `dovetail fit` does this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, dumped graphs: MatMul, Relu, Gelu, Softmax, Sigmoid, Add,
      Mul, PRelu, Concat, GridSample and Resize with different dtypes run in float; Gemm and LayerNormalization with
      int32 biases and a MatMul with per-channel weights are rejected ("standalone DQ op with per-channel
      quantization").
    """
    for operation in operations(subject):
        if not operation.in_integers or operation.op in IN_FLOAT_ONLY or operation.unit.shared():
            continue
        dtypes = dict.fromkeys(dtype_text(storage) for storage in _must_match(operation))
        if len(dtypes) > 1:
            node = operation.node
            yield Finding(
                "Q105",
                at_node(node),
                f"{say(node)} mixes {' and '.join(dtypes)} in its inputs and outputs: "
                f"{float_fallback_text(operation, subject)}",
                float_fallback_severity(operation, subject),
                fix=f"quantize the inputs and outputs of {node.op_type} to one dtype; to get a different one, add a "
                "second Q/DQ pair after its output",
            )


def _must_match(operation: Operation) -> list[Storage]:
    """The storages of the inputs and outputs that must have the same dtype, including constants left in float."""
    if operation.op in _ELEMENTWISE:
        inputs = [storage for _, storage in operation.inputs if storage.dtype is not DType.S32]  # int32: see Q401
    elif operation.op in _FIRST_ONLY:
        inputs = [storage for operand, storage in operation.inputs if operand.slot == 0]
        if operation.op in LINEAR:
            inputs += [s for operand, s in operation.inputs if operand.slot == 1 and not s.dtype.is_quantized]
    else:
        inputs = list(operation.activations)
    return [*inputs, *operation.outputs]


@rule("Q111")
def unsupported_16_bit_weight(subject: CheckInput) -> Iterator[Finding]:
    """A linear operator has a 16-bit weight that HTP rejects, or a uint16 weight that it converts to int16.

    ## What it finds
    In QDQ models: Conv, ConvTranspose, Gemm and MatMul with a constant weight

    - in int16 or uint16, on an architecture before v73;
    - in int16 or uint16, with 8-bit activations;
    - in int16 with a zero point other than 0;
    - in uint16: of a Gemm, or a MatMul with an Add of its bias, with a zero point other than 32768; of Conv,
      ConvTranspose and MatMul with any zero point (a warning).

    Tools give weights uint16 where they are Constant nodes, which they take for activations.

    ## Why it matters
    The model does not load. A uint16 weight of Conv, ConvTranspose and MatMul gets a Convert to int16 with zero point
    0, so the operator computes with other integers than the simulation. A 16-bit weight also takes twice the memory
    and more time than an 8-bit one.

    ## How to fix it
    Quantize the weight to int8 per channel or, from v73 on with 16-bit activations, to int16 with zero point 0. Make
    weights initializers before the model is quantized. `dovetail fit` does this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0): int16 with zero point 0 in all four operators, beside 8 and
      16 bits, on v68, v69 and SoC 43 (tests/backends/qnn_htp/test_operators.py): rejected on v68 and v69 ("has
      incorrect Value 68, expected >= 73") and beside 8 bits. Measured once: on SoC 36, and with uint16 and every
      zero point, the same; on v73 and SoC 43 int16 with zero point 0 agrees with the simulation to 73 to 81 dB;
      int16 with zero point 500 and a Gemm in uint16 with zero point 20000 are rejected; Gemm in uint16 with zero
      point 32768 compiles as it is; the other three get a Convert, with both zero points (71 to 80 dB).
    - qnn-htp: the same version, SoC 43: PP-OCRv6's direction classifier as onnxruntime's quantizer exports it, w8a16: a
      Convert from uint16 to int16 before each of 53 convolutions, and before a MatMul.
    """
    for operation in operations(subject):
        weight = operation.input_at(1) if operation.op in LINEAR and operation.in_integers else None
        if weight is None or not weight[0].constant or not isinstance(weight[1], QParams):
            continue
        problem = _wide_weight_problem(operation, weight[1], chip_of(subject))
        if problem is not None:
            severity, effect = problem
            name = original_name(weight[0])
            yield Finding(
                "Q111",
                at_node(operation.node, weight[0].edge),
                f"{say(operation.node)} has the weight {name!r} in {dtype_text(weight[1])}, which HTP {effect}",
                severity,
                fix=f"make {name!r} an initializer before the model is quantized, or quantize it to int8 per channel",
            )


def _wide_weight_problem(operation: Operation, weight: QParams, chip: Chip) -> tuple[Severity, str] | None:
    """What the compiler does with a 16-bit weight; None if it uses the weight as it is."""
    if weight.dtype not in _16_BIT:
        return None
    if not chip.has_int16_operands:
        return Severity.ERROR, "rejects before v73"
    if any(storage.dtype not in _16_BIT for storage in operation.activations):
        return Severity.ERROR, "rejects with 8-bit activations"
    if weight.dtype is DType.U16 and operation.op != "Gemm":
        return Severity.WARNING, "converts to int16"
    if not weight.encoding.symmetric:
        return Severity.ERROR, f"rejects unless its zero point is {0 if weight.dtype is DType.S16 else 32768}"
    return None


@rule("Q113")
def prelu_with_16_bit_slopes(subject: CheckInput) -> Iterator[Finding]:
    """A 16-bit PRelu has several slopes and is not after a Conv, or has slopes that vary within a channel.

    ## What it finds
    In QDQ models: PRelu with uint16 activations and a uint16 slope of more than one element, whose input is not the
    output of a Conv or ConvTranspose; or after one of these, with slopes that are not one per channel, if its input
    and output have the same scale.

    ## Why it matters
    HTP has such a kernel only fused with a convolution. Otherwise the compiler fails when it finalizes the graph, with
    an error that does not name the node, or it compiles the operator and returns wrong results. The fused kernel is
    also wrong if slopes vary over rows or columns and no other scale is asked for.

    ## How to fix it
    Leave the PRelu in float, without Q/DQ pairs on its slope; `dovetail fit` and `dovetail repair` do this. Or use
    8-bit activations, one slope, or one slope per channel after a convolution.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43 and 69, 2 to 64 slopes: on a graph input and after a Neg
      rejected (`QNN_COMMON_ERROR_MEM_ALLOC`); after an Add rejected, or with 24 and 33 slopes -6 dB against the
      simulation. With one slope, constant or not, 75 dB and more; in uint8 42 dB or more.
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, 2 to 64 channels, kernels of 1 to 4: one slope per channel
      after a Conv or ConvTranspose 57 dB or more, and 46 to 50 after one in float. Slopes of [C, H, W], [1, H, W] and
      [W] there: -6 to -3 dB with the scale of the input, whatever the zero points; 62 to 77 dB with a scale that
      differs by 0.03 % or more.
    """
    for operation in operations(subject):
        slope = operation.input_at(1) if operation.op == "PRelu" and operation.in_integers else None
        if slope is None or slope[1].dtype not in _16_BIT:
            continue
        why = why_not_wide_prelu(operation.node, _keeps_scale(operation))
        if why:
            yield Finding(
                "Q113",
                at_node(operation.node),
                f"{say(operation.node)} has several slopes in {dtype_text(slope[1])}: {why}; it rejects this one, or "
                "returns wrong results",
                Severity.ERROR,
                fix="leave the PRelu in float, or use 8-bit activations; `dovetail repair` does the first",
            )


def _keeps_scale(operation: Operation) -> bool:
    """Whether the first input and the output have the same scale."""
    source, result = operation.input_at(0), operation.outputs[0]
    if source is None or not isinstance(source[1], QParams) or not isinstance(result, QParams):
        return False
    return np.array_equal(source[1].scale, result.scale)
