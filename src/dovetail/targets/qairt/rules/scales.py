"""Q7 on scales of a caller's own file that the converter gets as they are, and HTP computes wrongly or replaces."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import numpy as np

from dovetail.encoding import Array, Granularity, QParams
from dovetail.finding import Finding, Severity
from dovetail.model.edit import constant_of
from dovetail.model.origin import origin_of
from dovetail.model.place import at_node, at_tensor
from dovetail.plan.blocks import WEIGHT
from dovetail.plan.qparams import per_output_channel
from dovetail.rules.check_input import CheckInput
from dovetail.rules.operations import BIAS_INPUT, LINEAR, Operation, operations, say
from dovetail.rules.rule import rule
from dovetail.targets.htp.rules.kernels import replaced_output
from dovetail.targets.htp.rules.numerics import saturated_channels
from dovetail.targets.qairt.coloring import Domain
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.given import plan_as_given
from dovetail.targets.qairt.predict import Cause
from dovetail.targets.qairt.roles import added_bias
from dovetail.targets.qairt.rules.subject import Conversion, conversion_of, qairt_facts, severity_of, with_facts
from dovetail.targets.qairt.sdk import Subject

_INT32_END = 2.0**31
# The scale of the range 0 to 1 is 1/65535: beside 1/65536, no value differs by more than one step.
_ONE_STEP = 1.6e-5
# The integer operators of the inputs that are being checked.
_OPERATIONS: WeakKeyDictionary[CheckInput, tuple[Operation, ...]] = WeakKeyDictionary()


def _given_operations(subject: CheckInput) -> tuple[Operation, ...]:
    """The operators of the caller's own graph that are predicted to compute in integers, with the file's scales.

    Not those with a weight in blocks with float scales: HTP dequantizes their activations to float16 (Q203).
    """
    if subject not in _OPERATIONS:
        _OPERATIONS[subject] = tuple(_integer_operations(subject))
    return _OPERATIONS[subject]


def _integer_operations(subject: CheckInput) -> Iterator[Operation]:
    conversion = conversion_of(subject)
    if conversion is None or subject.encodings is None or conversion.call.ignore_encodings:
        return
    plan = plan_as_given(conversion.model, subject.encodings)
    given = CheckInput(conversion.model, subject.table, subject.facts, plan)
    for operation in operations(given):
        quantized = [storage for storage in operation.constants if isinstance(storage, QParams)]
        has_blocks = any(params.encoding.granularity is Granularity.BLOCK for params in quantized)
        if conversion.domains[str(operation.node.name)] is Domain.INTEGER and not has_blocks:
            yield operation


@rule("Q727")
@with_facts(Subject.SMALL_RATIO)
def weight_entry_too_small_to_requantize(subject: CheckInput) -> Iterator[Finding]:
    """The scales of an encodings file are such that HTP computes a channel wrongly.

    ## What it finds
    With `check --encodings`: Conv, ConvTranspose, Gemm and MatMul with a constant weight and 16-bit activations, of
    which a channel has an input scale x weight scale / output scale of 2^-24 or less. The output is that of the
    activation or Add that is fused with the layer. Layers that are predicted to be in float are left out. Rule Q507
    is about the same limit in QDQ models.

    ## Why it matters
    The integer sums of a channel are multiplied by this ratio. Below the limit the result is saturated where it should
    be nearly constant. Folding a BatchNorm can leave such channels: their weights are nearly zero beside the others.
    The limit was measured on the emulator of HTP through ONNX Runtime's provider, and is AIMET's documented guard; it
    was not measured with the SDK.

    ## How to fix it
    Raise these scales to 2^-21 x output scale / input scale, and quantize the weights and the int32 bias of these
    channels again. `dovetail fit --encodings FILE` does this.

    ## Seen on
    {facts}
    """
    for operation in _given_operations(subject):
        saturated = saturated_channels(operation)
        if saturated is not None:
            known = fact(Subject.SMALL_RATIO, qairt_facts(subject).sdk)
            yield Finding(
                "Q727",
                at_node(operation.node),
                f"{say(operation.node)}: with the entries of its input and output, {saturated.text}: HTP is predicted "
                f"to saturate these channels ({known.known_from})",
                severity_of(known.answer),
                saturated.numbers,
                f"{saturated.fix}; `dovetail fit --encodings FILE` does this",
            )


@rule("Q728")
@with_facts(Subject.LARGE_BIAS)
def bias_beyond_int32_by_entries(subject: CheckInput) -> Iterator[Finding]:
    """A bias does not fit int32 with the scales of an encodings file.

    ## What it finds
    With `check --encodings`: Conv, ConvTranspose and Gemm with a bias, and MatMul followed by the Add of its bias, of
    which a channel has |bias| / (input scale x weight scale) above 2^31. An int32 entry of the bias changes nothing:
    the bias is added to sums of this scale. Left out are layers that are predicted to be in float, and a MatMul whose
    output has its own entry: the Add is then an operator of its own.

    ## Why it matters
    The bias is added in steps of input scale x weight scale, and stored as int32. Beyond int32 it cannot be stored: it
    is clipped or wraps around, with activations of any width, and the outputs of the channel are wrong by what is lost.
    The accumulator itself was measured on the emulator through ONNX Runtime's provider, with biases that just fit
    (Q563): with 8-bit activations it overflows, with 16-bit ones outputs agree to 106 dB or more. What the converter
    does with a larger bias was not measured. It happens where weights are tiny beside their bias, and with 16-bit
    weights.

    ## How to fix it
    Raise the weight scales of these channels until the bias fits, and quantize the weights again. `dovetail fit
    --encodings FILE` does this; AIMET does it before the export of int32 biases.

    ## Seen on
    {facts}
    """
    for operation in _given_operations(subject):
        steps = _bias_steps(operation, conversion_of(subject))
        if steps is None or not (channels := int(np.count_nonzero(steps > _INT32_END))):
            continue
        known = fact(Subject.LARGE_BIAS, qairt_facts(subject).sdk)
        yield Finding(
            "Q728",
            at_node(operation.node),
            f"{say(operation.node)}: with the entries of its input and weight, the bias of {channels} of {steps.size} "
            f"channels exceeds int32: it reaches {float(steps.max()):.4g} steps of input scale x weight scale "
            f"({known.known_from})",
            severity_of(known.answer),
            {"channels": float(channels), "steps": float(steps.max())},
            f"raise the weight scales of these channels by a factor of up to {float(steps.max()) / _INT32_END:.4g}; "
            "`dovetail fit --encodings FILE` does this",
        )


def _bias_steps(operation: Operation, conversion: Conversion | None) -> Array | None:
    """The bias of every output channel in steps of its scale; None for a layer without bias or without entries."""
    source, weight, bias = operation.input_at(0), operation.input_at(WEIGHT), _bias(operation, conversion)
    if operation.op not in LINEAR or source is None or weight is None or bias is None:
        return None
    if not isinstance(source[1], QParams) or not isinstance(weight[1], QParams):
        return None
    scales = per_output_channel(operation.node, weight[1]).astype(np.float64)
    if scales.size not in (1, bias.size):
        return None  # on another axis than that of the output channels
    return np.asarray(np.abs(bias.astype(np.float64)).reshape(-1) / (float(source[1].scale) * scales))


def _bias(operation: Operation, conversion: Conversion | None) -> Array | None:
    """The constant that a layer adds to every channel: its own input, or that of the Add which is fused with it."""
    own, output = operation.input_at(BIAS_INPUT), operation.node.outputs[0]
    if own is not None:
        return constant_of(own[0].value)
    predicted = None if conversion is None else conversion.predicted.get(str(output.name))
    is_fused = predicted is not None and predicted.cause is Cause.FUSED
    return constant_of(added_bias(output)) if is_fused else None


@rule("Q729")
@with_facts(Subject.OWN_OUTPUT_SCALE)
def output_entry_replaced(subject: CheckInput) -> Iterator[Finding]:
    """HTP has another scale and zero point for an output than its entry in the encodings file.

    ## What it finds
    With `check --encodings`: uint16 entries of the outputs of Sigmoid and HardSigmoid with another scale than 1/65536
    or another zero point than 0, and of Tanh with another scale than 1/32768 or another zero point than 32768. 1/65535
    and 2/65535, the scales of the ranges 0 to 1 and -1 to 1, are not reported: no value differs by more than one step.
    Rule Q109 is about QDQ models.

    ## Why it matters
    HTP's 16-bit kernels have a fixed scale and zero point, which replace those of the entry in the output and in all
    that reads it. The simulation rounds and clips on another grid than the chip.

    ## How to fix it
    Give the entry the fixed scale and zero point. `dovetail fit --encodings FILE` does this.

    ## Seen on
    {facts}
    """
    for operation in _given_operations(subject):
        replaced = replaced_output(operation, _ONE_STEP)
        if replaced is None:
            continue
        output, known = operation.unit.outputs[0], fact(Subject.OWN_OUTPUT_SCALE, qairt_facts(subject).sdk)
        yield Finding(
            "Q729",
            at_tensor(output),
            f"{origin_of(output).name!r}, the output of {say(operation.node)}, has an entry with {replaced.text}: HTP "
            f"is predicted to replace them with {replaced.by} ({known.known_from})",
            Severity.WARNING,
            replaced.numbers,
            f"give the entry {replaced.by}; `dovetail fit --encodings FILE` does this",
        )
