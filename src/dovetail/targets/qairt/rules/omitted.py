"""Q7 on tensors that have no entry in an encodings file."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.finding import Finding, Place, Severity
from dovetail.model.place import at_tensor
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule
from dovetail.targets.qairt.coloring import Domain
from dovetail.targets.qairt.predict import Cause, PredictedTensor
from dovetail.targets.qairt.roles import Role, tensor_roles
from dovetail.targets.qairt.rules.subject import FILE, WAYS_OUT, Conversion, conversion_of, listed, with_facts
from dovetail.targets.qairt.sdk import Subject


def _with_cause(conversion: Conversion, *causes: Cause) -> Iterator[tuple[PredictedTensor, Place]]:
    """The tensors that are predicted for one of these causes, each with its place.

    None if the encodings are ignored: then no tensor has an entry, and Q731 says so once.
    """
    if conversion.call.ignore_encodings:
        return
    roles = tensor_roles(conversion.model)
    for name, row in conversion.predicted.items():
        if row.cause in causes:
            yield row, at_tensor(roles[name].value)


def _or_calibrated(conversion: Conversion, rows: list[PredictedTensor]) -> str:
    """What else may become of tensors that Quantizer V2 is predicted to run in float; nothing for other tensors."""
    call = conversion.call
    if not call.input_list or rows[0].cause is not Cause.QUANTIZER_V2:
        return ""
    bits_of = {Role.WEIGHT: call.weight_bits, Role.BIAS: call.bias_bits}
    bits = sorted({bits_of.get(row.role, call.act_bits) for row in rows})
    return f", or {' or '.join(map(str, bits))} bit: not known with --input_list"


@rule("Q711")
@with_facts(Subject.CALIBRATES_OMITTED, Subject.READS_2_0_0, Subject.SELECTS_QUANTIZE_V2)
def encoding_omitted_with_input_list(subject: CheckInput) -> Iterator[Finding]:
    """A tensor without an encoding will silently be quantized to 8 bit.

    ## What it finds
    With `check --encodings`: activations, constants and weights that have no entry in the file, if the converter is
    called with `--input_list` (the default; `--option input_list=0` for a call without). AIMET leaves out tensors
    that are meant to be float16 or not quantized. Not for Quantizer V2, which a file of version 2.0.0 or
    `--option use_quantize_v2=1` selects where the SDK has it: it is meant to run such tensors in float16, and Q730
    says that they may become 8 bit. Not if the file is ignored (Q731). Outputs of operators that only move data,
    biases and tensors between fused operators are reported by Q712, Q713 and Q722.

    ## Why it matters
    The converter takes a missing entry for a tensor that it has to calibrate itself, at `--act_bitwidth`, which is 8
    unless it is set. Nothing is printed: a float16 tensor with a large range becomes 8 bit, and the accuracy of the
    simulation is lost on the device.

    ## How to fix it
    Give an entry to every tensor that is meant to be an integer (also to int32 biases and outputs that only move data),
    and call the converter with `--float_fallback --float_bitwidth 16`, without `--input_list`. Or split the model
    into parts of one precision each. `dovetail fit` with this target writes both.

    ## Seen on
    {facts}
    """
    conversion = conversion_of(subject)
    if conversion is None:
        return
    call, sdk = conversion.call, conversion.facts.sdk_text
    for row, place in _with_cause(conversion, Cause.CALIBRATED):
        bits = call.weight_bits if row.role is Role.WEIGHT else call.act_bits
        known = "" if row.fact is None else f" ({row.fact.known_from})"
        message = (
            f"{row.tensor!r} has no encoding and will silently become {bits} bit: with --input_list, the converter of "
            f"QAIRT {sdk} calibrates this {row.role} to {row.dtype}{known}"
        )
        yield Finding("Q711", place, message, Severity.ERROR, {"bits": bits}, WAYS_OUT)


@rule("Q712")
@with_facts(Subject.FILLS_PASS_THROUGH)
def pass_through_output_without_encoding(subject: CheckInput) -> Iterator[Finding]:
    """The output of an operator that only moves data has no encoding, and gets that of its input.

    ## What it finds
    With `check --encodings`: outputs of Reshape, Transpose, Slice, Split, Gather and the like without an entry.

    ## Why it matters
    It is a note: files below 2.0.0 never have these entries. The output is as precise as its input, so if the input has
    no entry either and becomes 8 bit, the output does as well.

    ## How to fix it
    Nothing needs to be done if the input has an entry. With `--float_fallback`, give these outputs the entry of
    their input, so that nothing depends on what the converter fills in; `dovetail fit` with this target does.

    ## Seen on
    {facts}
    """
    conversion = conversion_of(subject)
    if conversion is None:
        return
    for row, place in _with_cause(conversion, Cause.PASSED_THROUGH):
        known = "" if row.fact is None else f" ({row.fact.known_from})"
        message = f"{row.tensor!r} has no encoding and gets that of its input: it is predicted to be {row.dtype}{known}"
        fix = "nothing if its input has an entry; `dovetail encodings` files of version 2.0.0 have entries for both"
        yield Finding("Q712", place, message, Severity.NOTE, fix=fix)


@rule("Q713")
@with_facts(Subject.BIAS_OMITTED, Subject.HAS_FLOAT_FALLBACK)
def bias_without_int32_encoding(subject: CheckInput) -> Iterator[Finding]:
    """A bias has no encoding and will be 8 bit, or makes its layer run in float.

    ## What it finds
    With `check --encodings`: biases of Conv, Gemm, MatMul followed by Add, and normalizations without an entry. With
    `--input_list`, if `--bias_bitwidth` is 8, which is the default (`--option bias_bitwidth=32` if you set it). With
    `--float_fallback`, and with Quantizer V2 (see Q730), in any case.

    ## Why it matters
    An 8-bit bias has 256 levels, where the accumulator has 32 bits: accuracy is lost in every layer. With
    `--float_fallback` a layer whose bias has no entry runs in float: one public report had 271 of 1117 tensors without
    an entry, and 163 after int32 entries of biases were added.

    ## How to fix it
    Call the converter with `--bias_bitwidth 32`, or export int32 entries of biases (AIMET: `export_int32_bias=True`;
    `dovetail fit` with this target writes them).

    ## Seen on
    {facts}
    """
    conversion = conversion_of(subject)
    if conversion is None:
        return
    call = conversion.call
    for row, place in _with_cause(conversion, Cause.BIAS, Cause.FALLBACK, Cause.QUANTIZER_V2):
        if row.role is not Role.BIAS or (row.cause is Cause.BIAS and call.bias_bits != 8):
            continue
        known = "" if row.fact is None else f" ({row.fact.known_from})"
        what = "with --bias_bitwidth 8, the default, it becomes int8"
        fix = "call the converter with --bias_bitwidth 32, or add int32 entries of biases"
        if row.cause is not Cause.BIAS:
            by = "with --float_fallback" if row.cause is Cause.FALLBACK else "by Quantizer V2"
            what = f"{by} it is predicted to be {row.dtype}, and its layer to run in float"
            what += _or_calibrated(conversion, [row])
            fix = "add int32 entries of biases"
        message = f"bias {row.tensor!r} has no encoding: {what}{known}"
        yield Finding("Q713", place, message, Severity.WARNING, fix=fix)


@rule("Q722")
@with_facts(Subject.FUSED_OMITTED)
def fused_tensor_without_encoding(subject: CheckInput) -> Iterator[Finding]:
    """A tensor between operators that are fused has no encoding and needs none.

    ## What it finds
    With `check --encodings`: tensors without an entry between Conv, Gemm or Add and the activation after it, between a
    MatMul and the Add of its bias, and inside a LayerNorm of several operators.

    ## Why it matters
    It is a note: AIMET has no quantizer there, so its files have no entries. The tensor is not stored if the converter
    fuses the same operators. Whether a certain SDK does is not documented for every version.

    ## How to fix it
    Nothing needs to be done. If the converter does not fuse them, `dovetail verify RUN --converter-output FILE` shows
    the tensor with the precision that it got.

    ## Seen on
    {facts}
    """
    conversion = conversion_of(subject)
    if conversion is None:
        return
    for row, place in _with_cause(conversion, Cause.FUSED):
        known = "" if row.fact is None else f" ({row.fact.known_from})"
        message = f"{row.tensor!r} has no encoding and is not stored, because the operators around it are fused{known}"
        yield Finding("Q722", place, message, Severity.NOTE, fix="nothing needs to be done")


@rule("Q730")
@with_facts(Subject.HAS_FLOAT_FALLBACK, Subject.READS_2_0_0, Subject.SELECTS_QUANTIZE_V2)
def float_fallback_of_omitted_tensors(subject: CheckInput) -> Iterator[Finding]:
    """Tensors without an entry become float, and with them the operators that read or write them.

    ## What it finds
    With `check --encodings` and `--option float_fallback=1` (without `--input_list`), and with Quantizer V2, which a
    file of version 2.0.0 or `--option use_quantize_v2=1` selects where the SDK has it: how many tensors have no entry
    and none that the converter fills in (Q712, Q722), the first ones by name, and how many operators are predicted to
    compute in float. One finding for the file. What Quantizer V2 does with `--input_list`, which is the default, is not
    known: it may calibrate these tensors to 8 bit instead (Q711). Then the message says so.

    ## Why it matters
    It is a note with `--float_fallback`, and a warning with Quantizer V2, which you did not ask for float. To leave out
    what is meant to be float is the recommended way: then the numbers should be those that you expect. A tensor
    that was left out by mistake, as by an exporter or a renamed tensor (Q718), is float as well, and nothing is
    printed: the operator costs float latency, and splits the integer operators around it (Q724).

    ## How to fix it
    Nothing needs to be done if only these tensors were meant to be float. Give an entry to every other one, also to
    int32 biases (Q713).

    ## Seen on
    {facts}
    """
    conversion = conversion_of(subject)
    if conversion is None:
        return
    rows = [row for row, _ in _with_cause(conversion, Cause.FALLBACK, Cause.QUANTIZER_V2)]
    if not rows:
        return
    by_v2 = rows[0].cause is Cause.QUANTIZER_V2
    domains = list(conversion.domains.values())
    in_float, counted = domains.count(Domain.FLOAT), len(domains) - domains.count(Domain.NEITHER)
    known = "" if rows[0].fact is None else f" ({rows[0].fact.known_from})"
    names = listed([row.tensor for row in rows])
    message = (
        f"{len(rows)} of {len(conversion.predicted)} tensors have no entry and {'are predicted to ' * by_v2}become "
        f"{rows[0].dtype}{' by Quantizer V2, whose summary lists them' * by_v2}{_or_calibrated(conversion, rows)} "
        f"({names}): "
        f"{in_float} of {counted} operators are predicted to compute in float{known}"
    )
    numbers = {"tensors": float(len(rows)), "operators": float(in_float)}
    fix = "nothing if these were meant to be float; otherwise give them entries, int32 ones to biases"
    yield Finding("Q730", FILE, message, Severity.WARNING if by_v2 else Severity.NOTE, numbers, fix)
