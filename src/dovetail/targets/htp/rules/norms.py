"""Q1 on HTP: the parameters of normalizations."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.place import at_node
from dovetail.plan.constraints import Operand
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import Operation, dtype_text, operations, original_name, say
from dovetail.rules.rule import rule
from dovetail.storage import Storage
from dovetail.targets.htp.chips import Chip, chip_of
from dovetail.targets.htp.rules.in_float import float_fallback_severity, float_fallback_text

NORMS = frozenset(("InstanceNormalization", "LayerNormalization", "RMSNormalization"))
_8_BIT = (DType.U8, DType.S8)
_16_BIT = (DType.U16, DType.S16)


@rule("Q106")
def unsupported_norm_gamma_or_beta(subject: CheckInput) -> Iterator[Finding]:
    """A quantized normalization has a beta that is not int32, or a gamma with a quantization that HTP does not support.

    ## What it finds
    In QDQ models: quantized LayerNormalization and InstanceNormalization whose beta (bias) is uint8, uint16 or float;
    and quantized normalizations whose gamma (scale) is in none of these dtypes:

    | | 8-bit activations | 16-bit activations |
    |---|---|---|
    | LayerNormalization | uint8 | uint8; from v73 on also int16 with zero point 0, uint16 with zero point 32768 |
    | RMSNormalization | uint8 | uint8, int16, uint16 |
    | InstanceNormalization | uint8, int8 | uint8, int8, uint16 |

    ## Why it matters
    If beta is not int32, the normalization silently runs in float. If gamma has an unsupported dtype, or is float
    beside an int32 beta, the node is rejected; a float gamma without one makes the normalization run in float.

    ## How to fix it
    Quantize beta to int32 with scale = input scale x gamma scale, and gamma to uint8 if the activations are 8-bit. If
    they are 16-bit, quantize gamma of LayerNormalization and RMSNormalization to int16 with zero point 0, of
    InstanceNormalization to uint16; of LayerNormalization before v73 to uint8. `dovetail fit` does this, but for
    RMSNormalization, which it leaves in float.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, v68 and v69: the seven combinations of dtype and zero point
      uint8 0 and 100, int8 0, int16 0 and 7, uint16 0 and 32768, in 8 and 16 bits are compiled in
      tests/backends/qnn_htp/test_operators.py. Rejected: "None of the combinations match" for int8, "expected equal to
      -32768" for uint16 with zero point 0, "expected >= 73" for 16 bits in LayerNormalization on v68 and v69.
      InstanceNormalization converts int8 to uint8. Measured once: the same on SoC 36; the supported ones agree with
      the simulation to 80 dB and more in 16 bits.
    - qnn-htp: the same version, SoC 43, dumped graphs: with any beta other than int32, and with a float gamma without
      beta, the graph has Dequantize, the normalization in float, Quantize.
    - qnn-htp: vendor's estimate for SoC 52, one windowed DINOv2 block: 2478 us with a float norm, 1901 us in integers.
    """
    for operation in operations(subject):
        if not operation.in_integers or operation.op not in NORMS:
            continue
        beta, gamma = operation.input_at(2), operation.input_at(1)
        if beta is not None and beta[1].dtype is not DType.S32:
            name = original_name(beta[0])
            yield Finding(
                "Q106",
                at_node(operation.node, beta[0].edge),
                f"{say(operation.node)} has the beta {name!r} in {dtype_text(beta[1])} instead of int32: "
                f"{float_fallback_text(operation, subject)}",
                float_fallback_severity(operation, subject),
                fix=f"quantize {name!r} to int32 with scale = input scale x gamma scale",
            )
        elif gamma is not None and not _is_supported_gamma(operation, gamma[1], chip_of(subject)):
            yield _unsupported_gamma(operation, *gamma, subject)


def _unsupported_gamma(operation: Operation, operand: Operand, storage: Storage, subject: CheckInput) -> Finding:
    name, activations = original_name(operand), dtype_text(operation.outputs[0])
    quantized = isinstance(storage, QParams)
    rejected = f"for which {chip_of(subject).name} has no kernel with {activations} activations"
    return Finding(
        "Q106",
        at_node(operation.node, operand.edge),
        f"{say(operation.node)} has the gamma {name!r} in {dtype_text(storage)}"
        f"{', ' + rejected if quantized else ': ' + float_fallback_text(operation, subject)}",
        Severity.ERROR if quantized else float_fallback_severity(operation, subject),
        fix=f"quantize {name!r} to {_widest_gamma(operation, chip_of(subject))}",
    )


def _is_supported_gamma(operation: Operation, gamma: Storage, chip: Chip) -> bool:
    if not isinstance(gamma, QParams):
        return False
    is_wide = operation.outputs[0].dtype in _16_BIT and gamma.dtype in _16_BIT
    if operation.op == "LayerNormalization":
        is_wide = is_wide and gamma.encoding.symmetric and chip.has_int16_operands
    elif operation.op == "InstanceNormalization":
        is_wide = is_wide and gamma.dtype is DType.U16
    is_narrow = gamma.dtype is DType.U8 or (gamma.dtype is DType.S8 and operation.op == "InstanceNormalization")
    return is_narrow or is_wide


def _widest_gamma(operation: Operation, chip: Chip) -> str:
    """The most accurate quantization of gamma that the chip supports."""
    if operation.outputs[0].dtype not in _16_BIT:
        return "uint8"
    if operation.op == "InstanceNormalization":
        return "uint16"
    if operation.op == "LayerNormalization" and not chip.has_int16_operands:
        return "uint8"
    return "int16 with zero point 0"


@rule("Q110")
def batch_norm_with_16_bit_parameters(subject: CheckInput) -> Iterator[Finding]:
    """A quantized BatchNormalization has 16-bit scales, offsets, means or variances.

    ## What it finds
    In QDQ models: BatchNormalization between Q/DQ pairs with a parameter in uint16 or int16. Tools do this where the
    parameters are Constant nodes, which they take for activations.

    ## Why it matters
    HTP has no kernel for them ("QNN Batchnorm unsupported datatype on HTP"): the node runs on the CPU, or the model
    does not load.

    ## How to fix it
    Fold the BatchNormalization into the convolution before it; `dovetail fit` does this. Or quantize its parameters
    to 8 bits.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43: PP-OCRv6's direction classifier as onnxruntime's quantizer
      exports it, w8a16: all 35 are rejected. With uint8 parameters they compile.
    """
    for operation in operations(subject):
        if operation.op != "BatchNormalization" or not operation.in_integers:
            continue
        wide = [operand for operand, storage in operation.inputs if operand.slot > 0 and storage.dtype in _16_BIT]
        if wide:
            yield Finding(
                "Q110",
                at_node(operation.node),
                f"{say(operation.node)} has the 16-bit parameter {original_name(wide[0])!r}: HTP has no kernel for it",
                Severity.ERROR,
                fix="fold it into the convolution before it, or quantize its parameters to 8 bits",
            )


@rule("Q114")
def narrow_gamma_between_16_bit_activations(subject: CheckInput) -> Iterator[Finding]:
    """A normalization has 16-bit activations and an 8-bit gamma, where HTP supports a 16-bit one.

    ## What it finds
    In QDQ models: LayerNormalization (from v73 on), RMSNormalization and InstanceNormalization between 16-bit Q/DQ
    pairs with a gamma (scale) in uint8 or int8. One finding per model, at the first one, with their number.

    ## Why it matters
    Gamma multiplies the whole tensor: with 8 bits the outputs of the normalization agree with float to 46 to 57 dB,
    with 16 bits to 81 to 87 dB. The chip and the simulation lose the same.

    ## How to fix it
    Quantize gamma of LayerNormalization and RMSNormalization to int16 with zero point 0, of InstanceNormalization to
    uint16. `dovetail fit` does this for LayerNormalization and InstanceNormalization.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), emulated, 32 channels, gamma from 0.5 to 1.5, against float:
      LayerNormalization and InstanceNormalization on SoC 43, RMSNormalization on SoC 43 and v68: uint8 with zero point
      0 55 to 57 dB, with zero point 100 46 to 48 dB, int16 and uint16 81 to 87 dB. Vendor's estimate for SoC 52, on
      [4, 257, 384]: the same time with either (239, 307 and 77 us).
    """
    found = [operation for operation in operations(subject) if _has_narrow_gamma(operation, chip_of(subject))]
    if found:
        first, more = found[0], f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield Finding(
            "Q114",
            at_node(first.node),
            f"{say(first.node)}{more}: an 8-bit gamma between 16-bit activations limits the accuracy to about 55 dB",
            Severity.NOTE,
            {"normalizations": float(len(found))},
            f"quantize gamma to {_widest_gamma(first, chip_of(subject))}",
        )


def _has_narrow_gamma(operation: Operation, chip: Chip) -> bool:
    gamma = operation.input_at(1) if operation.op in NORMS and operation.in_integers else None
    if gamma is None or gamma[1].dtype not in _8_BIT or _widest_gamma(operation, chip) == "uint8":
        return False
    return gamma[0].constant
