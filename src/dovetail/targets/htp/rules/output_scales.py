"""Q5 on HTP: operators that are computed wrongly with some scales of their output."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dovetail.encoding import Granularity, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.place import at_node
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import Operation, operations, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.table import LARGEST_WRONG_LOG_SCALE, SOFTMAX_OUTPUT_STEP

# The relative error of a probability that is reported, and the one from which the outputs are far off (20 dB).
_REPORTED, _FAR = 0.01, 0.1


@rule("Q564")
def truncated_softmax_output_scale(subject: CheckInput) -> Iterator[Finding]:
    """HTP truncates the output scale of an 8-bit Softmax to a multiple of 2^-16.

    ## What it finds
    In QDQ models: a Softmax with an 8-bit output whose scale is more than 1 % above a multiple of 2^-16 (1.53e-5), or
    below 2^-16. That is possible for scales below 100 x 2^-16 (0.0015), which are chosen if no probability is above
    0.39. It is an error from 10 % on, and otherwise a warning.

    ## Why it matters
    HTP divides the probabilities by the truncated scale. The integers are too large by the part that was cut off, and
    those of large probabilities are clipped. The compiler reports nothing, the scale in the compiled graph is the one
    of the model, and the simulation does not show it.

    ## How to fix it
    Round the scale up to a multiple of 2^-16, as `dovetail fit` does, use 1/256, or quantize the output to 16 bits.
    `dovetail repair` computes such a Softmax in 16 bits.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: 19 scales from 0.5 to 600 x 2^-16. Scales of 1.5,
      2.9, 5.96, 10.5, 20.5 and 50.5 x 2^-16 agree with the simulation to 21, 17, 20, 29, 33 and 38 dB, multiples of
      2^-16 to 52 dB and more up to 6 x 2^-16, and to 38 to 46 dB from 150 x 2^-16 on, where fractions do not matter.
      The same in uint8 and int8, in ranks 2 to 5, and on v68, v69, v75, v79 and v81. Right with any scale: Softmax in
      16 bits (55 dB and more) and LogSoftmax in 8 bits.
    """
    for operation in operations(subject):
        scale = _output_scale(operation, "Softmax", 8)
        if scale is None:
            continue
        steps = scale / SOFTMAX_OUTPUT_STEP
        kept = max(math.floor(steps), 1)
        error = abs(steps / kept - 1)
        if error > _REPORTED:
            yield Finding(
                "Q564",
                at_node(operation.node),
                f"{say(operation.node)} has an 8-bit output with the scale {scale:.6g}, which is {steps:.6g} x 2^-16: "
                f"HTP computes with {kept} x 2^-16, and the outputs are wrong by {error:.1%}",
                Severity.ERROR if error >= _FAR else Severity.WARNING,
                {"scale": scale, "relative_error": error},
                f"use the scale {math.ceil(steps) * SOFTMAX_OUTPUT_STEP:.9g}, or quantize the output to 16 bits",
            )


@rule("Q565")
def log_output_scale_too_small(subject: CheckInput) -> Iterator[Finding]:
    """HTP computes a 16-bit Log wrongly if the scale of its output is 2^-14 or less.

    ## What it finds
    In QDQ models: a Log with a uint16 output whose scale is at most 2^-14 (6.1e-5). The range of its outputs is then at
    most 4, as for inputs from 0.02 to 1.

    ## Why it matters
    The outputs have nothing to do with those of the simulation. The compiler reports nothing.

    ## How to fix it
    Use a scale above 2^-14: a range of 4.01 costs less than one bit if the range was above 2. Or quantize input and
    output to 8 bits, or leave the Log in float. `dovetail fit` and `dovetail repair` leave it in float16.

    ## Seen on
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated: 40 combinations of input and output scales, zero
      points and ranks 1 to 4. Output scales of 4 x 2^-16 and less agree with the simulation to -21 to 0 dB, 4.001 x
      2^-16 and more to 60 dB and more, whatever the input scale; the same on v68, v69, v75, v79 and v81. In uint8 52 dB
      and more.
    """
    for operation in operations(subject):
        scale = _output_scale(operation, "Log", 16)
        if scale is not None and scale <= LARGEST_WRONG_LOG_SCALE:
            yield Finding(
                "Q565",
                at_node(operation.node),
                f"{say(operation.node)} has a 16-bit output with the scale {scale:.6g}: HTP returns wrong results for "
                "2^-14 (6.1e-5) and less",
                Severity.ERROR,
                {"scale": scale},
                "use a scale of 6.11e-5 or more, quantize input and output to 8 bits, or leave the Log in float; "
                "`dovetail repair` does the last",
            )


def _output_scale(operation: Operation, op: str, bits: int) -> float | None:
    """The only scale of an output of this operator and width, computed in integers; None for everything else."""
    if operation.op != op or not operation.in_integers:
        return None
    output = operation.outputs[0]
    if not isinstance(output, QParams) or output.encoding.granularity is not Granularity.TENSOR:
        return None
    is_integer = output.dtype.is_integer and output.dtype.bits == bits
    return float(output.scale) if is_integer else None
