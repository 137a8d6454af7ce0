"""Q1 on HTP: combinations of stored dtypes for which an operator has no integer kernel."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import attribute
from dovetail.model.place import at_node
from dovetail.op_support import OpTable
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import LINEAR, Operation, named, operations, say, words
from dovetail.rules.rule import rule
from dovetail.storage import Storage
from dovetail.targets.htp.rules.in_float import severity_in_float, what_in_float
from dovetail.targets.htp.rules.kernels import IN_FLOAT_ONLY
from dovetail.targets.htp.rules.shapes import narrow_operand

_16_BIT = (DType.U16, DType.S16)
# Operators whose constants must be stored like everything else around them.
_ELEMENTWISE = frozenset(("Add", "Concat", "Div", "Max", "Min", "Mul", "Pow", "Sub"))
_NORMS = frozenset(("InstanceNormalization", "LayerNormalization"))
# Operators of which only the first operand is compared with the result: the others have rules of their own.
_FIRST_ONLY = LINEAR | _NORMS | {"Einsum", "PRelu", "RMSNormalization"}


@rule("Q104")
def wide_second_operand(subject: CheckInput) -> Iterator[Finding]:
    """The second operand of a MatMul of two activations is 16 bit in a way that HTP does not multiply with.

    ## What it finds
    In QDQ models, MatMul and Einsum of two activations whose second operand is uint16; is int16 with a zero point other
    than 0; is 16 bit on a chip before v73; or is 16 bit beside an 8-bit first operand.

    ## Why it matters
    QK^T and attention times V are such products. A uint16 second operand is converted to uint8 without a word: the
    simulation has 16 bits, the chip 8. The other combinations are refused, and so is an Einsum whose uint16 operand has
    a zero point other than 32768 ("expected equal to -32768").

    ## How to fix it
    Say which one is meant: an 8-bit operand, or, from v73 on, a symmetric int16 one, as a further Q/DQ pair on the edge
    into the MatMul behind the uint16 pair. `dovetail fit` plans one of the two for every MatMul.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: uint16 x uint16 gets a Convert to uint8 in the dumped graph
      and agrees with the simulation to 41 dB; with a symmetric int16 operand 70 to 77 dB. v68 and v69 convert alike,
      and refuse int16 ("expected >= 73").
    """
    for operation in operations(subject):
        if not operation.in_integers or operation.op not in ("MatMul", "Einsum"):
            continue
        narrow = _narrow(operation)
        second = None if narrow is None else operation.read(narrow)
        other = None if narrow is None else operation.read(1 - narrow)
        if second is None or other is None or second[0].constant or other[0].constant:
            continue
        found = _obstacle(operation, second[1], other[1], subject.table)
        if found is not None:
            severity, message = found
            yield Finding(
                "Q104",
                at_node(operation.node, second[0].edge),
                f"{say(operation.node)} reads its second operand {named(second[0])!r} as {words(second[1])}: {message}",
                severity,
                fix=f"store {named(second[0])!r} as uint8 on this edge{_or_int16(subject.table)}",
            )


def _narrow(operation: Operation) -> int | None:
    return 1 if operation.op == "MatMul" else narrow_operand(str(attribute(operation.node, "equation", "")))


def _obstacle(operation: Operation, second: Storage, other: Storage, table: OpTable) -> tuple[Severity, str] | None:
    """What the compiler does with a 16-bit second operand; None where it does what was asked."""
    if not isinstance(second, QParams) or second.dtype not in _16_BIT:
        return None
    if other.dtype not in _16_BIT:
        return Severity.ERROR, f"HTP refuses it beside a first operand of {words(other)}"
    if operation.op == "MatMul" and second.dtype is DType.U16:
        return Severity.WARNING, "HTP converts it to uint8 without a word"
    if not _takes_16_bit(table):
        return Severity.ERROR, f"{table.target} takes an 8-bit one only"
    if not second.encoding.symmetric:
        return Severity.ERROR, f"HTP refuses its zero point {int(second.zero_point)}, it must be symmetric"
    return None


def _takes_16_bit(table: OpTable) -> bool:
    slots = [signature.slot(1) for signature in table.ops["MatMul"].signatures]
    return any(slot is not None and slot.encoding.dtype is DType.S16 and not slot.constant for slot in slots)


def _or_int16(table: OpTable) -> str:
    return ", or as int16 with zero point 0" if _takes_16_bit(table) else ""


@rule("Q105")
def unlike_dtypes_around_operator(subject: CheckInput) -> Iterator[Finding]:
    """An operator reads one integer dtype and writes another, or mixes integers with a float constant.

    ## What it finds
    In QDQ models: operators whose stored inputs and outputs differ in width or sign (a MatMul from uint8 to uint16,
    a Gemm from uint16 to int16, GridSample with uint8 data and a uint16 grid, Add of uint8 and uint16), and Add, Mul,
    Concat and the like, or a linear layer, with a constant that is still float. Operators that only move bytes are
    Q301's business, the second operand of a MatMul is Q104's.

    ## Why it matters
    HTP has integer kernels for one dtype on all sides. The provider sees no integer operator here and builds a float
    one between Dequantize and Quantize: speed is lost, silently. Where the operator has an int32 bias or per-channel
    weights it is refused instead, because these cannot be read back on their own; and on a chip without float16 there
    is no kernel (GridSample: 1002).

    ## How to fix it
    Store inputs, constants and outputs in one dtype, and change width with a further Q/DQ pair behind the operator's
    own. `dovetail fit` does so.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, dumped graphs: MatMul, Relu, Gelu, Softmax, Sigmoid, Add,
      Mul, Concat, GridSample and Resize with unlike dtypes run in float; Gemm and LayerNormalization with int32 biases
      and a MatMul with per-channel weights are refused ("standalone DQ op with per-channel quantization").
    """
    for operation in operations(subject):
        if not operation.in_integers or operation.op in IN_FLOAT_ONLY or operation.unit.shared():
            continue
        compared = _compared(operation)
        dtypes = dict.fromkeys(words(storage) for storage in compared)
        if len(dtypes) > 1:
            node = operation.node
            yield Finding(
                "Q105",
                at_node(node),
                f"{say(node)} has {' and '.join(dtypes)} around it: {what_in_float(operation, subject)}",
                severity_in_float(operation, subject),
                fix=f"store what {node.op_type} reads and writes in one dtype, and convert behind it where another one "
                "is wanted",
            )


def _compared(operation: Operation) -> list[Storage]:
    """The storages that must be of one dtype, and float constants that must not be there."""
    if operation.op in _ELEMENTWISE:
        read = [storage for _, storage in operation.inputs if storage.dtype is not DType.S32]  # that is Q401
    elif operation.op in _FIRST_ONLY:
        read = [storage for operand, storage in operation.inputs if operand.slot == 0]
        if operation.op in LINEAR:
            read += [s for operand, s in operation.inputs if operand.slot == 1 and not s.dtype.is_quantized]
    else:
        read = list(operation.activations)
    return [*read, *operation.outputs]


@rule("Q106")
def norm_constants_without_kernel(subject: CheckInput) -> Iterator[Finding]:
    """A LayerNormalization in integers has a beta that is not int32, or a gamma that HTP does not take.

    ## What it finds
    In QDQ models, LayerNormalization (and InstanceNormalization, for its beta) between integers whose beta is stored as
    uint8, uint16 or float, and LayerNormalization whose gamma is none of: uint8, or with 16-bit activations int16 with
    zero point 0 or uint16 with zero point 32768.

    ## Why it matters
    With any other beta the normalization runs in float, silently. With an int32 beta and another gamma the node is
    refused.

    ## How to fix it
    Store beta as int32 with scale = input scale x gamma scale, and gamma as int16 with zero point 0 (16-bit
    activations) or uint8 (8-bit ones). `dovetail fit` does so.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, dumped graphs: any beta but int32 gives Dequantize,
      LayerNorm in float, Quantize. With an int32 beta, int8 gamma ("None of the combinations match"), int16 gamma with
      zero point 7 and uint16 gamma with zero point 0 ("expected equal to -32768") are refused, and beside uint8
      activations every gamma but uint8.
    - qnn-htp: vendor's estimate for SoC 52, one windowed DINOv2 block: 2478 us with a float norm, 1901 us in integers.
    """
    for operation in operations(subject):
        if not operation.in_integers or operation.op not in _NORMS:
            continue
        node, beta, gamma = operation.node, operation.read(2), operation.read(1)
        if beta is not None and beta[1].dtype is not DType.S32:
            yield Finding(
                "Q106",
                at_node(node, beta[0].edge),
                f"{say(node)} has its beta {named(beta[0])!r} as {words(beta[1])} and not as int32: "
                f"{what_in_float(operation, subject)}",
                severity_in_float(operation, subject),
                fix=f"store {named(beta[0])!r} as int32 with scale = input scale x gamma scale",
            )
        elif gamma is not None and node.op_type == "LayerNormalization" and not _is_gamma(operation, gamma[1]):
            yield Finding(
                "Q106",
                at_node(node, gamma[0].edge),
                f"{say(node)} has its gamma {named(gamma[0])!r} as {words(gamma[1])}, for which HTP has no kernel "
                f"beside {words(operation.outputs[0])}",
                Severity.ERROR,
                fix=f"store {named(gamma[0])!r} as int16 with zero point 0 where activations are 16 bit, else as uint8",
            )


def _is_gamma(operation: Operation, gamma: Storage) -> bool:
    if not isinstance(gamma, QParams):
        return False
    wide = operation.outputs[0].dtype in _16_BIT
    return gamma.dtype is DType.U8 or (wide and gamma.dtype in _16_BIT and gamma.encoding.symmetric)
