"""What the compiler's words mean and what to do about them; every row is provoked on the real compiler by a test.

The words are those of onnxruntime-qnn 2.7.0 (QAIRT 2.51).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dovetail.targets.htp.rules.compiler import (
    ARCHITECTURE_REFUSED,
    MEMORY_REFUSED,
    OPERATOR_REFUSED,
    RATIO_OF_SCALES,
    SHAPE_REFUSED,
    TYPES_REFUSED,
)


@dataclass(frozen=True, slots=True)
class LogPattern:
    """Words of the compiler, as a pattern: the code under which they are explained, and what to do."""

    pattern: str
    code: str
    fix: str


# A refusal. The first row that fits counts.
REFUSALS: tuple[LogPattern, ...] = (
    LogPattern(
        r"could not create op",
        TYPES_REFUSED,
        "there is no kernel for this operator with these types; the 1002 MEM_ALLOC that follows means this, memory is "
        "not short: float needs a chip with float16, integers need inputs of one width",
    ),
    LogPattern(
        r"not sufficiently tiled to fit in TCM",
        MEMORY_REFUSED,
        "one operator needs more tightly coupled memory than it may have: raise --option vtcm_mb, or split the tensor",
    ),
    LogPattern(
        r"incorrect Rank 5",
        SHAPE_REFUSED,
        "this operator stops at rank 4 on HTP: merge dimensions with a Reshape in front of it",
    ),
    LogPattern(r"incorrect Rank", SHAPE_REFUSED, "HTP takes tensors up to rank 5: merge dimensions"),
    LogPattern(
        r"are not supported by QNN EP",
        OPERATOR_REFUSED,
        "there is no such operator on HTP: rewrite it, or keep it out of the model",
    ),
    LogPattern(
        r"per-channel quant", TYPES_REFUSED, "only weights may have a scale per channel: give activations one scale"
    ),
    LogPattern(r"along the last axis", SHAPE_REFUSED, "Transpose the axis to the end, normalize, and Transpose back"),
    LogPattern(r"unsupported equation", SHAPE_REFUSED, "write this Einsum as Transpose and MatMul"),
    LogPattern(
        r"master op validator .*MatMul failed",
        SHAPE_REFUSED,
        "the operands of a MatMul must have the same rank: Reshape them first",
    ),
    LogPattern(
        r"incorrect Value -?\d+, expected equal to",
        TYPES_REFUSED,
        "a 16-bit operand must be symmetric here: int16 with zero point 0, or uint16 with 32768",
    ),
    LogPattern(
        r"incorrect Value \d+, expected >= \d+",
        ARCHITECTURE_REFUSED,
        "this needs a newer HTP architecture: the first number is the chip's, the second the least that has it",
    ),
    LogPattern(
        r"Unsupported input/output datatypes",
        TYPES_REFUSED,
        "there is no kernel for this set of types; int32 in particular is taken only as the bias of Conv and Gemm",
    ),
    LogPattern(
        r"SocModel doesn't support FP16",
        TYPES_REFUSED,
        "this chip does not compute in float16: keep the tensor in integers, or choose a newer chip",
    ),
    LogPattern(
        r"NonMaxSuppression: max_output_boxes_per_class",
        OPERATOR_REFUSED,
        "leave NonMaxSuppression behind the model: how many boxes it keeps is not known when it is compiled",
    ),
    LogPattern(
        r"output shape must be static|Cannot get shape",
        SHAPE_REFUSED,
        "every shape must be known when it is compiled: pin inputs with --shape, leave such operators behind the model",
    ),
)

# The compiler did not come so far as to look at the graph: words -> the sentence.
NOT_STARTED: tuple[tuple[str, str], ...] = (
    (
        r"cannot open shared object file|Failed to load library",
        "a library of the compiler is missing: install it again, pip install 'dovetail-fit[qnn]'",
    ),
    (
        r"Unknown config socModel|Failed to create device",
        "the compiler does not know this SoC number: look it up, or name the architecture alone, as in qnn-htp:v73",
    ),
    (
        r"Unable to load backend|HTP Prepare backend loading failed",
        "a library of the compiler could not be loaded, most likely because memory is short: raise "
        "--option memory_limit_mb",
    ),
    (r"Error creating execution provider", "the provider does not start"),
)

# Said of a graph that was taken all the same: words -> what it means.
WARNINGS: tuple[LogPattern, ...] = (
    LogPattern(
        r"scale too large for requant",
        RATIO_OF_SCALES,
        "an operator's output has a scale so much finer than its input's that the kernel cannot represent the ratio: "
        "its range is far too small, or the input's is blown up by outliers",
    ),
)

# Said of every graph, and of no interest.
HARMLESS = re.compile(r"unexpected GraphHtpSettings option 66|no properties registered for")


def meaning(table: tuple[LogPattern, ...], words: str, otherwise: str) -> LogPattern:
    """The row of a table that fits some words; one with the code ``otherwise`` and nothing to do where none does."""
    return next((row for row in table if re.search(row.pattern, words)), LogPattern("", otherwise, ""))


def why_not_started(words: str) -> str:
    """What is said of words with which the compiler does not start; empty when they are none."""
    return next((text for pattern, text in NOT_STARTED if re.search(pattern, words)), "")
