"""Known messages of the compiler, with the rule code and the fix; a test triggers every row on the real compiler.

The messages are those of onnxruntime-qnn 2.7.0 (QAIRT 2.51).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dovetail.targets.htp.rules.compiler import (
    DTYPES_NOT_SUPPORTED,
    NEEDS_NEWER_ARCHITECTURE,
    OPERATOR_NOT_SUPPORTED,
    SCALE_RATIO_TOO_LARGE,
    SHAPE_NOT_SUPPORTED,
    TOO_LARGE_FOR_VTCM,
)


@dataclass(frozen=True, slots=True)
class LogPattern:
    """A pattern for a message of the compiler, the code of the rule that explains it, and the fix."""

    pattern: str
    code: str
    fix: str


# Messages about a rejected node; the first matching row counts.
REJECTIONS: tuple[LogPattern, ...] = (
    LogPattern(
        r"could not create op",
        DTYPES_NOT_SUPPORTED,
        "HTP has no kernel for this operator with these dtypes (the 1002 MEM_ALLOC that follows is not about memory): "
        "to run in float choose a chip with float16, to run in integers quantize all inputs to the same bit width",
    ),
    LogPattern(
        r"not sufficiently tiled to fit in TCM",
        TOO_LARGE_FOR_VTCM,
        "the operator needs more tightly coupled memory (VTCM) than is available: raise --option vtcm_mb, or split the "
        "tensor",
    ),
    LogPattern(
        r"incorrect Rank 5",
        SHAPE_NOT_SUPPORTED,
        "HTP supports this operator only up to rank 4: merge dimensions with a Reshape before it",
    ),
    LogPattern(
        r"incorrect Rank", SHAPE_NOT_SUPPORTED, "HTP supports tensors up to rank 5: merge dimensions with a Reshape"
    ),
    LogPattern(
        r"are not supported by QNN EP",
        OPERATOR_NOT_SUPPORTED,
        "HTP does not support this operator: replace it with other operators, or remove it from the model",
    ),
    LogPattern(
        r"per-channel quant",
        DTYPES_NOT_SUPPORTED,
        "HTP supports per-channel scales only for weights: give activations one scale",
    ),
    LogPattern(
        r"along the last axis",
        SHAPE_NOT_SUPPORTED,
        "move the axis to the end with a Transpose, normalize, and Transpose back",
    ),
    LogPattern(r"unsupported equation", SHAPE_NOT_SUPPORTED, "write this Einsum as Transpose and MatMul"),
    LogPattern(
        r"master op validator .*MatMul failed",
        SHAPE_NOT_SUPPORTED,
        "the operands of a MatMul must have the same rank: Reshape them before it",
    ),
    LogPattern(
        r"incorrect Value -?\d+, expected equal to",
        DTYPES_NOT_SUPPORTED,
        "this operand must be symmetric: for 16 bits int16 with zero point 0, or uint16 with zero point 32768",
    ),
    LogPattern(
        r"incorrect Value \d+, expected >= \d+",
        NEEDS_NEWER_ARCHITECTURE,
        "this requires a newer HTP architecture (the first number is the chip's, the second the oldest that supports "
        "it): quantize the operands differently, or choose a newer chip",
    ),
    LogPattern(
        r"Unsupported input/output datatypes",
        DTYPES_NOT_SUPPORTED,
        "HTP has no kernel for these dtypes: use the same bit width for all inputs, and int32 only for the bias of "
        "Conv and Gemm",
    ),
    LogPattern(
        r"SocModel doesn't support FP16",
        DTYPES_NOT_SUPPORTED,
        "this chip does not support float16: quantize the tensor, or choose a chip with float16",
    ),
    LogPattern(
        r"NonMaxSuppression: max_output_boxes_per_class",
        OPERATOR_NOT_SUPPORTED,
        "the number of boxes is not known at compile time: run NonMaxSuppression after the model, outside the target",
    ),
    LogPattern(
        r"output shape must be static|Cannot get shape",
        SHAPE_NOT_SUPPORTED,
        "every shape must be known at compile time: pin inputs with --shape, or run the operator after the model",
    ),
)

# What to do about an operator that has no integer kernel, whose constants the compiler then rejects.
NO_KERNEL_FIX = (
    "quantize all inputs and the output of this operator to one bit width, the output directly after it, or keep the "
    "operator in float (--keep NAME=fp16)"
)

# Messages with which the compiler does not start, and what to tell the user.
NOT_STARTED: tuple[tuple[str, str], ...] = (
    (
        r"cannot open shared object file|Failed to load library",
        "a library of the compiler is missing: install it again with pip install 'dovetail-fit[qnn]'",
    ),
    (
        r"Unknown config socModel|Failed to create device",
        "the compiler does not know this SoC number: check it, or name only the architecture, as in qnn-htp:v73",
    ),
    (
        r"Unable to load backend|HTP Prepare backend loading failed",
        "a library of the compiler could not be loaded, probably because of the memory limit: raise "
        "--option memory_limit_mb",
    ),
    (r"Error creating execution provider", "the QNN execution provider does not start"),
)

# Errors that are logged for a graph that is accepted.
WARNINGS: tuple[LogPattern, ...] = (
    LogPattern(
        r"scale too large for requant",
        SCALE_RATIO_TOO_LARGE,
        "the ratio of an operator's input scale and output scale is too large for its kernel: check whether the "
        "output's range is far too small, or outliers make the input's far too large",
    ),
)

# Errors that are logged for every graph and mean nothing.
HARMLESS = re.compile(r"unexpected GraphHtpSettings option 66|no properties registered for")


def matching_row(table: tuple[LogPattern, ...], message: str, default_code: str) -> LogPattern:
    """Return the first row of a table that matches a message, or one with the default code and no fix."""
    return next((row for row in table if re.search(row.pattern, message)), LogPattern("", default_code, ""))


def why_not_started(message: str) -> str:
    """Return why the compiler does not start, for one of its messages; empty if the message is about something else."""
    return next((text for pattern, text in NOT_STARTED if re.search(pattern, message)), "")
