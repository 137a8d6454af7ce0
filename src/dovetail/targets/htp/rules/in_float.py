"""What the HTP compiler does with an operator that must run in float.

Measured with onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), one graph per operator, the dumped graph read back.
"""

from __future__ import annotations

from dovetail.finding import Severity
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import Operation
from dovetail.targets.htp.chips import Chip, chip_of

# Operators that only change the shape or layout: they run in float on every chip.
_ANYWHERE = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
# If the graph is compiled for an architecture without an SoC number, all operators but these run in float32.
_NO_FLOAT32 = frozenset(
    (
        "Atan",
        "CumSum",
        "Elu",
        "Gather",
        "GatherElements",
        "Gelu",
        "GridSample",
        "HardSigmoid",
        "InstanceNormalization",
        "LpNormalization",
        "RMSNormalization",
        "ReduceLogSumExp",
        "RoiAlign",
        "RotaryEmbedding",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Selu",
        "ThresholdedRelu",
        "Where",
    )
)


def runs_in_float(chip: Chip, op: str) -> bool:
    """Whether an operator can run in float at all: on a chip without float16 almost none can.

    If only an architecture such as v73 is named, and not a chip, most operators run in float32.
    """
    if chip.has_float16 or op in _ANYWHERE:
        return True
    return chip.soc is None and op not in _NO_FLOAT32


def float_fallback_severity(operation: Operation, subject: CheckInput) -> Severity:
    """How bad it is that an operator has no integer kernel: rejected (an error) or slow (a warning)."""
    rejected = operation.needs_integer_kernel or not runs_in_float(chip_of(subject), operation.op)
    return Severity.ERROR if rejected else Severity.WARNING


def float_fallback_text(operation: Operation, subject: CheckInput) -> str:
    """What the compiler does with an operator that has no integer kernel."""
    if operation.needs_integer_kernel:
        return "HTP would run it in float, but cannot dequantize its int32 or per-channel constants"
    if not runs_in_float(chip_of(subject), operation.op):
        return f"HTP would run it in float, which {subject.table.target} does not support"
    return "HTP runs it in float, between Dequantize and Quantize"
