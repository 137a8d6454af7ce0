"""What the compiler's words mean and what to do about them; every row is provoked on the real compiler by a test.

The words are those of onnxruntime-qnn 2.7.0 (QAIRT 2.51).
"""

from __future__ import annotations

import re

# A refusal: words -> what to do. The first row that fits counts.
REFUSALS: tuple[tuple[str, str], ...] = (
    (
        r"could not create op",
        "there is no kernel for this operator with these types; the 1002 MEM_ALLOC that follows means this, memory is "
        "not short: float needs a chip with float16, integers need inputs of one width",
    ),
    (
        r"not sufficiently tiled to fit in TCM",
        "one operator needs more tightly coupled memory than it may have: raise --option vtcm_mb, or split the tensor",
    ),
    (
        r"incorrect Rank 5",
        "this operator stops at rank 4 on HTP: merge dimensions with a Reshape in front of it",
    ),
    (r"incorrect Rank", "HTP takes tensors up to rank 5: merge dimensions"),
    (
        r"are not supported by QNN EP",
        "there is no such operator on HTP: rewrite it, or keep it out of the model",
    ),
    (r"per-channel quant", "only weights may have a scale per channel: give activations one scale"),
    (r"along the last axis", "Transpose the axis to the end, normalize, and Transpose back"),
    (r"unsupported equation", "write this Einsum as Transpose and MatMul"),
    (
        r"master op validator .*MatMul failed",
        "the operands of a MatMul must have the same rank: Reshape them first",
    ),
    (
        r"incorrect Value -?\d+, expected equal to",
        "a 16-bit operand must be symmetric here: int16 with zero point 0, or uint16 with 32768",
    ),
    (
        r"incorrect Value \d+, expected >= \d+",
        "this needs a newer HTP architecture: the first number is the chip's, the second the least that has it",
    ),
    (
        r"Unsupported input/output datatypes",
        "there is no kernel for this set of types; int32 in particular is taken only as the bias of Conv and Gemm",
    ),
    (
        r"SocModel doesn't support FP16",
        "this chip does not compute in float16: keep the tensor in integers, or choose a newer chip",
    ),
    (
        r"NonMaxSuppression: max_output_boxes_per_class",
        "leave NonMaxSuppression behind the model: how many boxes it keeps is not known when it is compiled",
    ),
    (
        r"output shape must be static|Cannot get shape",
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
WARNINGS: tuple[tuple[str, str], ...] = (
    (
        r"scale too large for requant",
        "an operator's output has a scale so much finer than its input's that the kernel cannot represent the ratio: "
        "its range is far too small, or the input's is blown up by outliers",
    ),
)

# Said of every graph, and of no interest.
HARMLESS = re.compile(r"unexpected GraphHtpSettings option 66|no properties registered for")


def meaning(table: tuple[tuple[str, str], ...], words: str) -> str:
    """What a table says about some words; empty when nothing."""
    return next((text for pattern, text in table if re.search(pattern, words)), "")
