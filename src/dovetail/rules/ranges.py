"""Q5: ranges and numerics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from dovetail.encoding import Array, DType, Encoding
from dovetail.encodings.records import Encodings, TensorEncoding
from dovetail.finding import Finding, Place, PlaceKind, Severity
from dovetail.model.edit import constant_of, is_float
from dovetail.model.origin import each_value, origin_of
from dovetail.model.place import at_tensor, named
from dovetail.numerics.grid import SMALLEST_SCALE
from dovetail.rules.check_input import CheckInput
from dovetail.rules.keep_line import float_precision, keep_line, names_to_keep
from dovetail.rules.loss import ABSURD_STEP, QuantizationLoss
from dovetail.rules.rule import rule
from dovetail.rules.stored import Activation, Constant, activations, constants, encodings_by_name


@rule("Q501")
def range_too_wide_to_quantize(subject: CheckInput) -> Iterator[Finding]:
    """A tensor's range is so wide that nearly all of its values quantize to zero.

    ## What it finds
    Tensors in which a few huge values (a sentinel of 1e34, a mask of -1e9) set the range and with it the scale, so that
    the values that carry the information round to zero. The scale is the step between neighboring quantized values.
    With 8-bit or 16-bit quantization, a tensor is reported if:

    - its values are known (a constant, or a calibration histogram), and at least 99 % of the non-zero values below half
      of the largest magnitude quantize to zero, or any value quantizes to zero with a scale of 131 008 or more;
    - only its range or its scale is known (also that of an entry of an encodings file in which others are missing), and
      the scale is 131 008 or more. This is twice the largest float16 value, so every value that float16 can represent
      quantizes to zero. It is a range of 3.3e7 at 8 bits and of 8.6e9 at 16.

    The check uses the planned scale and zero point. Without a plan, a tensor is reported only if every encoding in the
    target's table fails. The finding is an error if no encoding of the target is fine enough, and a warning if a
    different one than the planned one is. An entry of a file is a warning if an encoding of the target with more bits
    is fine enough over the same range; of several scales, the largest one and its zero point are the range. A constant
    mask that contains only zero and one large number is quantized exactly and not reported; its sum with the scores
    is. Outputs of Softmax and Sigmoid are judged only by their range, because small probabilities may round to zero
    without harm.

    ## Why it matters
    The model returns noise, although every scale is finite and every compiler accepts the model. More bits do not help
    against a sentinel: each bit halves the scale, and 1e34 is 113 halvings away from 1.

    ## How to fix it
    Clamp the sentinel to a value that has the same effect on its consumers. Before a Softmax, 20 below the largest
    score is enough (exp(-20) = 2e-9); for anchors, a value slightly outside the image. If the wide range is real (boxes
    before a logarithm), keep the tensor in float with `--keep NAME=fp32`, or quantize it to 16 bits if the finding says
    that this is enough.

    ## Seen on
    - every target, by arithmetic: the scale of a 16-bit tensor with a range of 1e34 is 1e34 / 65 535 = 1.5e29.
    - qairt: RT-DETRv2 with AIMET encodings, from a public report: decoder `Add_output_0` reaches 2.7e34 (anchors plus a
      sentinel). AP50 is 0.499 in float, 0.011 with 16-bit weights and activations, and 0.500 with W8A16 and the wide
      tensors in float16.
    - xnnpack: executorch 1.5.1, x86-64: if attention scores are quantized together with a mask of -1e9, the outputs of
      the Softmax are all equal (below 10 dB against float); the program loads and runs without an error.
    """
    tensors: list[Constant | Activation] = [*constants(subject), *activations(subject)]
    for tensor in tensors:
        params = tensor.planned or tensor.params(tensor.encodings[-1])
        loss = tensor.loss(params)
        if loss.too_coarse:
            finer = next((e for e in tensor.encodings if not tensor.loss(tensor.params(e)).too_coarse), None)
            if finer is None or tensor.planned is not None:
                yield _too_wide(subject, tensor, params.dtype, loss, finer)
    if subject.plan is None and subject.encodings is not None:
        yield from _entries_too_wide(subject, subject.encodings)


def _entries_too_wide(subject: CheckInput, file: Encodings) -> Iterator[Finding]:
    """The entries of a file that are too wide by themselves, whatever else is missing in it."""
    values = {str(value.name): value for value in each_value((subject.raw or subject.model).graph)}
    offered = encodings_by_name(subject.problem)
    for name, entry in file.entries.items():
        step = 0.0 if entry.is_float or not entry.scale.size else float(entry.scale.max())
        if step < ABSURD_STEP:
            continue
        low, high = _widest_range(entry)
        finer = next((e for e in offered.get(name, ()) if _is_finer(e, entry, low, high)), None)
        own = f"quantize {name!r} to {finer.dtype} over this range, which is fine enough; or " if finer else ""
        yield Finding(
            "Q501",
            at_tensor(values[name]) if name in values else Place(PlaceKind.TENSOR, tensor=name),
            f"the entry of {name!r} has a range from {low:.4g} to {high:.4g}: its scale in {entry.dtype_text} is "
            f"{step:.3g}, and every value that float16 can represent becomes zero",
            Severity.ERROR if finer is None else Severity.WARNING,
            {"low": low, "high": high, "step": step},
            f"{own}clamp the value that sets the range of {name!r} in the model, and export the encodings again, or "
            "leave the tensor in float",
        )


def _widest_range(entry: TensorEncoding) -> tuple[float, float]:
    """The range of the channel or block with the largest scale."""
    widest = int(entry.scale.argmax())
    step = float(entry.scale.reshape(-1)[widest])
    zero_points = entry.zero_point.reshape(-1)
    zero_point = float(zero_points[widest] if zero_points.size == entry.scale.size else zero_points[0])
    highest = entry.lowest + (1 << entry.bits) - 1
    return (entry.lowest - zero_point) * step, (highest - zero_point) * step


def _is_finer(encoding: Encoding, entry: TensorEncoding, low: float, high: float) -> bool:
    """Whether an encoding of the target has more bits than an entry, and enough for its range."""
    width = 2 * max(-low, high) if encoding.symmetric else high - low
    bits = encoding.dtype.bits
    return bits > entry.bits and width / ((1 << bits) - 1) < ABSURD_STEP


def _too_wide(
    subject: CheckInput, tensor: Constant | Activation, dtype: DType, loss: QuantizationLoss, finer: Encoding | None
) -> Finding:
    name = origin_of(tensor.value).name
    numbers = {"low": tensor.low, "high": tensor.high, "step": loss.step}
    if loss.lost_share is None:
        lost = "every value that float16 can represent becomes zero"
    else:
        lost = f"{100 * loss.lost_share:.4g} % of its smaller non-zero values become zero"
        numbers["lost_share"] = loss.lost_share
    fix = (
        f"quantize {name!r} to {finer.dtype} over its own range, which is fine enough; or " if finer is not None else ""
    )
    return Finding(
        "Q501",
        at_tensor(tensor.value),
        f"{tensor.kind} {name!r} has a range from {tensor.low:.4g} to {tensor.high:.4g}: quantized to {dtype} its "
        f"scale is {loss.step:.3g}, and {lost}",
        Severity.ERROR if finer is None else Severity.WARNING,
        numbers,
        f"{fix}clamp the value that sets the range to one with the same effect on its consumers, or keep {name!r} in "
        f"float{_keep(subject, tensor)}",
    )


def _keep(subject: CheckInput, tensor: Constant | Activation) -> str:
    """The option that keeps an activation in float, and who reads it; empty for a constant, which has no precision."""
    precision = float_precision(subject.table)
    if isinstance(tensor, Constant) or precision is None:
        return ""
    readers = ", ".join(named(node) for node, _ in tensor.value.uses())
    line = keep_line(names_to_keep(tensor.value), precision)
    return f": {line}{f' (it is read by {readers})' if readers else ''}"


@rule("Q502")
def nan_or_infinity_in_constant(subject: CheckInput) -> Iterator[Finding]:
    """A constant contains NaN or infinity.

    ## What it finds
    Float initializers and constants, also in subgraphs, with at least one value that is not finite.

    ## Why it matters
    No scale covers infinity, and integers cannot represent NaN. A mask of -inf becomes the lowest integer of the range
    of the other values, or the range itself becomes infinite. `dovetail fit` refuses such a model if the value reaches
    an activation.

    ## How to fix it
    Replace a mask of -inf with a finite number that is low enough, such as -100 before a Softmax: exp(-100) rounds to
    zero. Replace +inf as an upper bound with the largest value that can occur. NaN comes from a faulty export or a
    folded division by zero; find the operator that produced it.

    ## Seen on
    - ort-cpu: onnxruntime 1.31.1, measured (tests/backends/ort_cpu/test_rules.py): QuantizeLinear silently converts NaN
      to the lowest integer and saturates infinity.
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
    summary = ", ".join(f"{count} x {kind}" for kind, count in counts.items() if count)
    if counts["nan"]:
        fix = f"find the cause of the NaN in {name!r}: a faulty export, or a folded division by zero"
    elif counts["+inf"]:
        fix = f"replace infinity in {name!r} with the largest value that can occur"
    else:
        fix = f"if {name!r} is a mask before a Softmax, replace -inf with -100: exp(-100) rounds to zero as well"
    return Finding(
        "Q502",
        at_tensor(value),
        f"constant {name!r} contains {summary} among {array.size} values",
        Severity.ERROR,
        {kind: float(count) for kind, count in counts.items()},
        fix,
    )


@rule("Q503")
def constant_tensor(subject: CheckInput) -> Iterator[Finding]:
    """A quantized tensor has the same value in every element.

    ## What it finds
    Quantized activations that have the same value in every element of every calibration sample, or no value above 1e-19
    (the smallest scale, 2**-63), and quantized constants that contain only zeros.

    ## Why it matters
    A range of width zero gives a scale of zero, and dividing by it is undefined. Dovetail extends every range to
    contain zero and uses the scale 1 for a tensor of zeros, so such a tensor is quantized exactly and the finding is
    only a note. But it may mean that a branch of the model is dead, or that the calibration data does not exercise it:
    then all other values that occur at run time are clipped to this range.

    ## How to fix it
    Nothing, if the tensor is constant by design. Otherwise calibrate with data that exercises this branch of the model,
    or remove the branch.

    ## Seen on
    - ort-cpu: onnxruntime 1.31.1, measured (tests/backends/ort_cpu/test_rules.py): QuantizeLinear with scale 0 and zero
      point 3 converts 0.0 to 0 instead of 3, and 1.0 to 255.
    """
    for constant in constants(subject):
        if not constant.array.any():
            yield _constant(constant, f"contains only zeros ({constant.array.size})")
    for tensor in activations(subject):
        largest = max(abs(tensor.low), abs(tensor.high))
        if tensor.low == tensor.high:
            yield _constant(tensor, f"is {tensor.low:.6g} in every element of every sample")
        elif largest < SMALLEST_SCALE:
            yield _constant(tensor, f"is practically zero, its largest magnitude is {largest:.3g}")


def _constant(tensor: Constant | Activation, observation: str) -> Finding:
    name = origin_of(tensor.value).name
    params = tensor.planned or tensor.params(tensor.encodings[-1])
    return Finding(
        "Q503",
        at_tensor(tensor.value),
        f"{tensor.kind} {name!r} {observation}: it gets the scale {float(params.scale.max()):.6g}",
        Severity.NOTE,
        {"value": tensor.low, "scale": float(params.scale.max())},
        f"if {name!r} is not constant by design, calibrate with data that exercises it, or remove it from the model",
    )
