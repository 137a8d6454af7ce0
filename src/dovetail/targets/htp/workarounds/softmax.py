"""A 16-bit Softmax: HTP truncates the scale of its input, and so multiplies all logits by slightly less than one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.place import at_node
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import operations, original_name, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.table import LEAST_SOFTMAX_SCALE
from dovetail.targets.htp.workarounds.workaround import Workaround

# HTP multiplies the integers by floor(scale x log2(e) x 2^22) x 2^-22, so these scales are exact.
STEP = math.log(2) * 2**-22
# A float32 may be off by its last bit, which must not cost a whole step.
_MARGIN = 1e-6
# The error of a logit that is reported: 0.5 % of a probability. The largest possible one is 65535 steps, 1.1 %.
_REPORTED = 0.005
# A difference of logits beyond this gives a probability of zero in 16 bits.
_LARGEST_LOGITS = 20.0
# Input scales below this give wrong results; 2.5e-6 does, 3e-6 does not.
_REVERSED = 3e-6


def exact_scale(node: ir.Node, dtype: DType, scale: float) -> float:
    """The smallest scale of a 16-bit input that is not below ``scale`` and that HTP does not truncate."""
    if dtype is not DType.U16:
        return scale
    return max(scale, math.ceil(scale / STEP / (1 + 2 * _MARGIN)) * STEP * (1 + _MARGIN))


def logit_error(scale: float) -> float:
    """By how much the largest difference of two logits that matters, and that a uint16 can represent, is too small."""
    steps = scale / STEP
    return (steps - math.floor(steps)) * STEP * min(DType.U16.grid.high - DType.U16.grid.low, _LARGEST_LOGITS / scale)


@rule("Q558")
def inexact_softmax_scale(subject: CheckInput) -> Iterator[Finding]:
    """HTP truncates the input scale of a 16-bit Softmax, and computes it wrongly if the scale is tiny.

    ## What it finds
    In QDQ models: a Softmax with a uint16 input whose scale is below 3e-6 (an error), or so far above a multiple of
    ln(2) x 2^-22 that the difference of two logits can be wrong by more than 0.005 (a warning).

    ## Why it matters
    HTP computes powers of two: it multiplies the integers by scale x log2(e), truncated to a multiple of 2^-22. All
    logits are multiplied by a number below one, in a range of 1.2 by 0.993: small probabilities are too large and large
    ones too small, by up to 1.1 %, and the result agrees with the simulation to 50 to 60 dB instead of 80. With a scale
    below 3e-6 the order of the probabilities is reversed.

    ## How to fix it
    Round the scale up to a multiple of ln(2) x 2^-22 (1.65e-7), and to at least 2^-17: by at most 1.1 % if the range is
    at least 1. `dovetail fit` and `dovetail repair` do this.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: for 21 ranges from 1 to 16 the factor of the
      logits, computed from the outputs, is the truncated scale divided by the scale; 53 to 88 dB against the
      simulation, with rounded scales 83 to 93 dB. The same factor for ranks 2, 3 and 4, and on v68, v69, v75, v79 and
      v81. Scales from 1e-7 to 2.5e-6: 9 dB; 3e-6: 63 dB.
    """
    for operation in operations(subject):
        source = operation.input_at(0)
        if operation.op != "Softmax" or not operation.in_integers or source is None:
            continue
        storage = source[1]
        if not isinstance(storage, QParams) or storage.dtype is not DType.U16 or storage.axis is not None:
            continue
        scale = float(storage.scale)
        error = logit_error(scale)
        if scale < _REVERSED or error > _REPORTED:
            what = f"reads {original_name(source[0])!r} with the scale {scale:.6g}"
            truncated = f"which HTP truncates: a difference of logits is too small by up to {error:.2g}"
            exact = exact_scale(operation.node, DType.U16, max(scale, LEAST_SOFTMAX_SCALE))
            yield Finding(
                "Q558",
                at_node(operation.node),
                f"{say(operation.node)} {what}, {'which is too small for HTP' if scale < _REVERSED else truncated}",
                Severity.ERROR if scale < _REVERSED else Severity.WARNING,
                {"scale": scale, "logit_error": error},
                f"use the scale {exact:.9g}; `dovetail fit` and `dovetail repair` do this",
            )


WORKAROUND = Workaround("Q558", limits={"Softmax": lambda support: replace(support, input_scale=exact_scale)})
