"""Q5: ranges and numerics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, Encoding
from dovetail.finding import Finding, Severity
from dovetail.model.edit import constant_of, is_float
from dovetail.model.origin import origin_of
from dovetail.model.place import at_tensor
from dovetail.numerics.grid import SMALLEST_SCALE
from dovetail.rules.check_input import CheckInput
from dovetail.rules.loss import QuantizationLoss
from dovetail.rules.rule import rule
from dovetail.rules.stored import Activation, Constant, activations, constants


@rule("Q501")
def range_beyond_any_grid(subject: CheckInput) -> Iterator[Finding]:
    """A range is so wide that nearly everything inside it becomes zero.

    ## What it finds
    Tensors in which a few huge values (a sentinel of 1e34, a mask of -1e9) set the range and so the step of the integer
    grid, and the values that carry the information round to zero. With the step of the grid in question, be it of 8
    or 16 bits:

    - where the values are known (constants, calibration that counts): at least 99 % of the non-zero values below half
      of the largest magnitude become zero, or any value becomes zero under a step of 131 008 or more;
    - where only the range or the scale is known: the step is 131 008 or more, twice the largest float16, so that every
      number which float16 can hold becomes zero. That is a range of 3.3e7 at 8 bits and of 8.6e9 at 16.

    The grid is the planned one. Without a plan, every grid that the target's table has there must fail. It is an error
    when no grid of the target serves, a warning when another one than the planned would. A constant mask that holds
    only zero and one large number is stored exactly and is not found; its sum with the scores is. Results of Softmax
    and Sigmoid are judged by their range alone: their small values are meant to vanish.

    ## Why it matters
    The model returns noise, although every scale is finite and every compiler accepts it. More bits do not help against
    a sentinel: each bit halves the step, and 1e34 is 113 halvings away from 1.

    ## How to fix it
    Clamp the sentinel to what its reader can tell apart: in front of a Softmax, 20 below the largest score is already
    nothing (exp(-20) = 2e-9); for anchors, a little outside the picture. Where the wide range is real (boxes before a
    logarithm), keep the tensor in float with `--keep NAME=fp32`, or in 16 bits if the finding says that they serve.

    ## Seen on
    - every target, by arithmetic: the step of a 16-bit grid over 1e34 is 1e34 / 65 535 = 1.5e29.
    - qairt: RT-DETRv2 with AIMET encodings, from a public report: decoder `Add_output_0` reaches 2.7e34 (anchors plus a
      sentinel). AP50 is 0.499 in float, 0.011 with 16-bit weights and activations, 0.500 with W8A16 and the wide
      tensors in float16.
    - xnnpack: executorch 1.5.1, x86-64: scores stored with a mask of -1e9 are all alike behind the Softmax (below 10 dB
      against float), and the program loads and runs without a word.
    """
    tensors: list[Constant | Activation] = [*constants(subject), *activations(subject)]
    for tensor in tensors:
        grid = tensor.planned or tensor.params(tensor.encodings[-1])
        loss = tensor.loss(grid)
        if loss.unserved:
            serving = next((e for e in tensor.encodings if not tensor.loss(tensor.params(e)).unserved), None)
            if serving is None or tensor.planned is not None:
                yield _beyond(tensor, grid.dtype, loss, serving)


def _beyond(tensor: Constant | Activation, dtype: DType, loss: QuantizationLoss, serving: Encoding | None) -> Finding:
    name = origin_of(tensor.value).name
    numbers = {"low": tensor.low, "high": tensor.high, "step": loss.step}
    if loss.share is None:
        lost = "every number that float16 can hold becomes zero"
    else:
        lost = f"{100 * loss.share:.4g} % of its smaller non-zero values become zero"
        numbers["lost_share"] = loss.share
    other = f"store it as {serving.dtype} over its own range, which serves it; or " if serving is not None else ""
    return Finding(
        "Q501",
        at_tensor(tensor.value),
        f"{tensor.what} {name!r} reaches from {tensor.low:.4g} to {tensor.high:.4g}: stored as {dtype} its step is "
        f"{loss.step:.3g}, and {lost}",
        Severity.ERROR if serving is None else Severity.WARNING,
        numbers,
        f"{other}clamp the value that sets the range to what its readers can tell apart, or keep {name!r} in float",
    )


@rule("Q502")
def nan_or_infinity_in_constant(subject: CheckInput) -> Iterator[Finding]:
    """A constant holds NaN or infinity.

    ## What it finds
    Float initializers and constants, subgraphs included, with at least one value that is not finite.

    ## Why it matters
    No scale covers infinity, and NaN has no place on an integer grid. What was masked with -inf comes back as the
    lowest integer of whatever range the rest has, or the range itself becomes infinite. `dovetail fit` refuses such a
    model when the value reaches an activation.

    ## How to fix it
    A mask of -inf: write a finite number that is low enough, such as -100 in front of a Softmax; what it masks is then
    exp(-100), which is zero. +inf as an upper bound: write the largest value that can occur. NaN: the export went
    wrong, or a division by zero was folded; find what wrote it.

    ## Seen on
    - ort-cpu: onnxruntime 1.31.1, measured (tests/numerics/test_affine.py): QuantizeLinear stores NaN as the lowest
      integer and saturates infinity, without a word.
    - every target, by arithmetic: (high - low) / steps is not finite.
    """
    for graph in subject.model.graphs():
        for value in graph.initializers.values():
            array = constant_of(value) if is_float(value) else None
            if array is not None and not np.isfinite(array).all():
                yield _not_finite(value, array)


def _not_finite(value: ir.Value, array: Array) -> Finding:
    name = origin_of(value).name
    counts = {
        "nan": np.count_nonzero(np.isnan(array)),
        "+inf": np.count_nonzero(np.isposinf(array)),
        "-inf": np.count_nonzero(np.isneginf(array)),
    }
    words = ", ".join(f"{count} x {kind}" for kind, count in counts.items() if count)
    if counts["nan"]:
        fix = f"find what wrote NaN into {name!r}: the export, or a folded division by zero"
    elif counts["+inf"]:
        fix = f"write the largest value that can occur in place of infinity in {name!r}"
    else:
        fix = f"if {name!r} is a mask in front of a Softmax, write -100 in place of -inf: exp(-100) is zero as well"
    return Finding(
        "Q502",
        at_tensor(value),
        f"constant {name!r} holds {words} among {array.size} values",
        Severity.ERROR,
        {kind: float(count) for kind, count in counts.items()},
        fix,
    )


@rule("Q503")
def constant_tensor(subject: CheckInput) -> Iterator[Finding]:
    """A tensor has no range: it is the same number everywhere.

    ## What it finds
    Activations that had one and the same value in every element of every calibration sample, or none above 1e-19 (the
    smallest scale, 2**-63), and constants that hold only zeros, where they are stored as integers.

    ## Why it matters
    A range of zero width gives a scale of zero, and dividing by it is undefined. Dovetail widens every range to contain
    zero, and gives all zeros the scale 1, so such a tensor is stored exactly: this is a note. But a part of the model
    that is dead, or calibration data that never wakes it, is worth knowing about: whatever else comes at run time is
    cut off at this range.

    ## How to fix it
    If it is constant by design, nothing. Otherwise calibrate with data that exercises this part of the model, or remove
    the part.

    ## Seen on
    - ort-cpu: onnxruntime 1.31.1, measured: QuantizeLinear with scale 0 and zero point 3 stores 0.0 as 0, not as 3, and
      1.0 as 255.
    """
    for constant in constants(subject):
        if not constant.array.any():
            yield _constant(constant, f"holds nothing but zeros ({constant.array.size})")
    for tensor in activations(subject):
        largest = max(abs(tensor.low), abs(tensor.high))
        if tensor.low == tensor.high:
            yield _constant(tensor, f"is {tensor.low:.6g} everywhere in every sample")
        elif largest < SMALLEST_SCALE:
            yield _constant(tensor, f"is as good as zero, never above {largest:.3g}")


def _constant(tensor: Constant | Activation, words: str) -> Finding:
    name = origin_of(tensor.value).name
    params = tensor.planned or tensor.params(tensor.encodings[-1])
    return Finding(
        "Q503",
        at_tensor(tensor.value),
        f"{tensor.what} {name!r} {words}: it gets a safe scale of {float(params.scale.max()):.6g}",
        Severity.NOTE,
        {"value": tensor.low, "scale": float(params.scale.max())},
        f"if {name!r} is not constant by design, calibrate with data that exercises it, or remove it",
    )
