"""Q5: values whose range no integers can represent, with the operators that produce and read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from dovetail.encoding import DType, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import constant_of, is_float, is_op
from dovetail.model.origin import origin_of
from dovetail.model.place import at_tensor, named
from dovetail.model.sentinels import READERS, Effect, SentinelEdge, effect_of, is_sentinel
from dovetail.rules.check_input import CheckInput
from dovetail.rules.keep_line import float_precision, keep_line, names_to_keep
from dovetail.rules.rule import rule
from dovetail.rules.stored import Activation, activations, representable_range

# A bound of these is not stored in the tensor that they compute, unless it takes effect.
_BOUNDED_BY = ("Clip", "Max", "Min")
_LARGEST_FLOAT16 = 65504.0


@rule("Q508")
def sentinel_in_quantized_tensor(subject: CheckInput) -> Iterator[Finding]:
    """A constant with a sentinel (1e34, the largest float, -1e9, infinity) is part of a quantized tensor.

    ## What it finds
    In `dovetail fit`, in QDQ models, and in `dovetail check --calib`: float constants with values of magnitude 1e9 or
    more that an operator reads and whose result is quantized. Bounds of Clip, Max and Min are not reported. The finding
    names the constant, the operator that reads it, the tensor that this operator computes, the operators after it, and
    why the value was not reduced. Without calibration, Q501 and Q502 report the constant itself.

    ## Why it matters
    The sentinel sets the range of the tensor, and with it the scale: all other values quantize to the same integer.
    Reducing it is safe only if nothing after it depends on its magnitude, which is proven for a Sigmoid, Tanh or Clip
    (it saturates), an ArgMax or a TopK whose values are not used (only the order counts), and a Softmax (it gives
    zero). `dovetail fit` does this (passes `bound_sentinels` and `fit_sentinels`), also through data movement, sums
    and masks computed from a boolean tensor; `--no-range-repair` switches it off.

    ## How to fix it
    If the sentinel reaches a graph output, replace it in the model by a value just outside the valid range; anchors
    outside the image need no larger one. Otherwise keep the tensor in float with the `--keep` line of the finding. In
    float16, everything above 65 504 is infinity, which a Sigmoid and a Softmax tolerate and a subtraction does not.

    ## Seen on
    - qairt: RT-DETRv2 with AIMET encodings, from a public report: decoder `Add_output_0` reaches 2.7e34 (anchors plus a
      sentinel); AP50 falls from 0.499 to 0.021 in W8A16.
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated (`python -m bench.ranges`, and
      tests/backends/qnn_htp/test_ranges.py): a decoder with such
      anchors has its boxes at 4.3 dB against float with `--no-range-repair`, and at 55.3 dB without it.
    """
    if subject.plan is None and subject.stats is None:
        return
    for value in subject.model.graph.initializers.values():
        array = constant_of(value) if is_float(value) else None
        if array is None or not array.size or not is_sentinel(array).any():
            continue
        for node, index in value.uses():
            output = node.outputs[0] if node.outputs else None
            if output is not None and not is_op(node, *_BOUNDED_BY) and _is_quantized(subject, output):
                yield _sentinel(subject, SentinelEdge(node, index, value, array), output)


def _sentinel(subject: CheckInput, edge: SentinelEdge, output: ir.Value) -> Finding:
    name, tensor = origin_of(edge.value).name, origin_of(output).name
    effect = effect_of(edge) if is_op(edge.node, *READERS) else f"{named(edge.node)} computes with its magnitude"
    reason = "`dovetail fit` reduces it, unless --no-range-repair is set" if isinstance(effect, Effect) else effect
    largest = float(edge.array[edge.hits][np.abs(edge.array[edge.hits]).argmax()])
    others = edge.array[~edge.hits]
    beside = f", beside values from {others.min():.4g} to {others.max():.4g}" if others.size else ""
    readers = ", ".join(named(node) for node, _ in output.uses()) or "a graph output"
    count = int(edge.hits.sum())
    return Finding(
        "Q508",
        at_tensor(edge.value),
        f"constant {name!r} has {count} sentinels of {largest:.4g}{beside}, read by {named(edge.node)}, whose output "
        f"{tensor!r} is read by {readers}; not reduced: {reason}",
        Severity.WARNING,
        {"sentinel": largest, "count": float(count)} if np.isfinite(largest) else {"count": float(count)},
        _fix(subject, output, abs(largest)),
    )


@rule("Q509")
def logarithm_of_values_that_quantize_to_zero(subject: CheckInput) -> Iterator[Finding]:
    """The input of a Log is quantized so coarsely that its small values become zero.

    ## What it finds
    Quantized tensors that a Log reads and whose smallest value in the calibration data is positive, but at most half of
    the scale. Without a plan, a tensor is reported if that is so with every encoding of the target's table. Without
    calibration data, those whose smallest value a Clip or Max of the graph sets, perhaps before a Div.

    ## Why it matters
    The values are on a logarithmic scale and the integers are on a linear one: the logarithm of a value that becomes
    zero is minus infinity, or the lowest value of the output's range. Detectors refine boxes with the logit of the
    last box, `Log(x / (1 - x))` with both clamped to 1e-5: the ratio ranges from 1e-5 to 1e5, and with 16 bits
    everything below 0.76 is zero.

    ## How to fix it
    Compute the logit without the ratio. `dovetail fit` does this where the box is the output of a Sigmoid (its input is
    the logit), and writes `Log(x) - Log(1 - x)` where both are clamped; `--no-range-repair` switches it off. Otherwise
    keep the tensor in float with the `--keep` line of the finding.

    ## Seen on
    - qairt: RT-DETRv2 with AIMET encodings, from a public report: `Div_output_0` to `Div_output_5` of the decoder reach
      1e5.
    - qnn-htp: onnxruntime-qnn 2.7.0 (QAIRT 2.51.0), SoC 43, emulated (`python -m bench.ranges`, and
      tests/backends/qnn_htp/test_ranges.py): a decoder with such
      boxes has them at 8.8 dB against float with `--no-range-repair`, and at 53.2 dB without it.
    """
    for tensor in activations(subject):
        logs = [node for node, _ in tensor.value.uses() if is_op(node, "Log")]
        params = tensor.planned or tensor.params(tensor.encodings[-1])
        step = float(params.scale.max())
        low = _clamped_to(tensor.value, subject) if logs and subject.stats is None else tensor.low
        if logs and low is not None and 0 < low <= step / 2:
            yield _logarithm(subject, replace(tensor, low=low), logs[0], step)


def _clamped_to(value: ir.Value, subject: CheckInput) -> float | None:
    """The smallest value that the graph allows: the bound of a Clip or Max, divided by the largest divisor of a Div."""
    node = value.producer()
    if node is None:
        return None
    if is_op(node, "Div") and node.inputs[0] is not None and node.inputs[1] is not None:
        dividend, plan = _clamped_to(node.inputs[0], subject), subject.plan
        choice = None if plan is None else plan.tensors.get(str(node.inputs[1].name))
        if dividend is None or choice is None or not isinstance(choice.storage, QParams):
            return None
        largest = representable_range(choice.storage)[1]
        return dividend / largest if largest > 0 else None
    bounds = node.inputs[1:2] if is_op(node, "Clip") else node.inputs if is_op(node, "Max") else ()
    arrays = [array for array in map(constant_of, bounds) if array is not None and array.size]
    return max((float(array.min()) for array in arrays), default=None)


def _logarithm(subject: CheckInput, tensor: Activation, log: ir.Node, step: float) -> Finding:
    name, producer = origin_of(tensor.value).name, tensor.value.producer()
    written = "a graph input" if producer is None else f"the output of {named(producer)}"
    return Finding(
        "Q509",
        at_tensor(tensor.value),
        f"{name!r}, {written}, ranges from {tensor.low:.4g} to {tensor.high:.4g} and is read by {named(log)}: with a "
        f"scale of {step:.3g} its values up to {step / 2:.3g} become zero, which has no logarithm",
        Severity.WARNING,
        {"low": tensor.low, "high": tensor.high, "step": step},
        _fix(subject, tensor.value, tensor.high),
    )


def _fix(subject: CheckInput, value: ir.Value, largest: float) -> str:
    precision, tensor = float_precision(subject.table), origin_of(value).name
    if precision is None:
        target = subject.table.target
        return f"change the model so that {tensor!r} has a smaller range: {target} computes in integers only"
    overflows = subject.table.float_encoding.dtype is DType.F16 and largest > _LARGEST_FLOAT16
    caution = f"; {largest:.4g} becomes infinity in float16" if overflows else ""
    line = keep_line(names_to_keep(value), precision)
    return f"keep {tensor!r} and what its readers compute in float: {line}{caution}"


def _is_quantized(subject: CheckInput, value: ir.Value) -> bool:
    """Whether the plan quantizes a tensor; without a plan every float tensor may be."""
    choice = None if subject.plan is None else subject.plan.tensors.get(value.name or "")
    return is_float(value) if subject.plan is None else choice is not None and isinstance(choice.storage, QParams)
