"""What becomes of an operator that has to run in float on HTP.

Measured with onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), one graph per operator, the dumped graph read back.
"""

from __future__ import annotations

from dovetail.finding import Severity
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import Operation
from dovetail.targets.htp.chips import Chip

# Operators that only change the shape: they run in float on every chip.
_ANYWHERE = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
# Compiled for an architecture without an SoC number, all other operators run in float32.
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


def chip_of(subject: CheckInput) -> Chip:
    """The chip that a subject is for, from the facts of its target."""
    chip = getattr(subject.facts, "chip", None)
    if not isinstance(chip, Chip):
        raise TypeError("the facts of a target with HTP's rules name its chip")
    return chip


def runs_in_float(chip: Chip, op: str) -> bool:
    """Whether an operator can run in float at all: on a part without float16 next to none can.

    For a bare architecture such as v73 and not a part, float32 is emulated.
    """
    if chip.has_float16 or op in _ANYWHERE:
        return True
    return chip.soc is None and op not in _NO_FLOAT32


def severity_in_float(operation: Operation, subject: CheckInput) -> Severity:
    """How bad it is that an operator falls out of the integers: slow, or refused."""
    refused = operation.stranded or not runs_in_float(chip_of(subject), operation.op)
    return Severity.ERROR if refused else Severity.WARNING


def what_in_float(operation: Operation, subject: CheckInput) -> str:
    """What the compiler does with an operator that falls out of the integers."""
    if operation.stranded:
        return "HTP would run it in float, and refuses to read its int32 or per-channel constants there"
    if not runs_in_float(chip_of(subject), operation.op):
        return f"HTP would run it in float, which {subject.table.target} cannot"
    return "HTP runs it in float, between Dequantize and Quantize"
