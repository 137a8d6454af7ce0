"""A quantized LpNormalization: wrong on HTP between some reshapes, for reasons that are not known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.place import at_node
from dovetail.op_support import OpSupport
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.workarounds.workaround import Workaround


def _in_float16(support: OpSupport) -> OpSupport:
    """Only the float16 kernel; a chip that has none keeps the others."""
    floats = tuple(signature for signature in support.signatures if signature.output.dtype is DType.F16)
    return replace(support, signatures=floats or support.signatures)


@rule("Q549")
def quantized_lp_normalization(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a quantized LpNormalization wrongly in some graphs.

    ## What it finds
    In QDQ models: LpNormalization with a quantized input and output.

    ## Why it matters
    In cosine attention, where the LpNormalization is after a linear layer, Reshapes and a Transpose, it can return
    other rows than its own: 2 to 20 dB against the simulation. Which shapes are wrong depends on the operators before
    it and on how the tensor is reshaped; no form was right in all graphs.

    ## How to fix it
    Leave the LpNormalization in float: no QuantizeLinear after it. `dovetail fit` and `dovetail repair` do this on
    chips with float16.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated, 16 bits: of 16 graphs with Gemm, Reshape,
      Transpose and LpNormalization 6 are wrong, as a matrix (5 of 8) or with the axes of attention (1 of 8); in float16
      all 16 have 69 to 71 dB. After an Add that is broadcast over the batch: [2, 8, 4], [4, 8, 8], [4, 24, 20] and [1,
      4, 24, 20] wrong, [96, 20] and [4, 1, 24, 20] right. On images after a Conv, along the channels and along the
      last axis, all of 16 are right.
    """
    for operation in operations(subject):
        source = operation.input_at(0)
        if operation.op != "LpNormalization" or source is None or not isinstance(source[1], QParams):
            continue
        if all(isinstance(storage, QParams) for storage in operation.outputs):
            yield Finding(
                "Q549",
                at_node(operation.node),
                f"{say(operation.node)}: HTP computes a quantized LpNormalization wrongly in some graphs",
                Severity.WARNING,
                fix="leave it in float, as `dovetail fit` and `dovetail repair` do",
            )


WORKAROUND = Workaround("Q549", limits={"LpNormalization": _in_float16})
