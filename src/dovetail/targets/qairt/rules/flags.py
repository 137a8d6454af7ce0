"""Q7 on flags of the converter that exclude each other, or have a default that is rarely meant."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.encodings import v0_6_1, v1_0_0
from dovetail.finding import Finding, Severity
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.rules.subject import CONVERTER, FILE, conversion_of, severity_of, with_facts
from dovetail.targets.qairt.sdk import Answer, Subject


@rule("Q719")
@with_facts(Subject.HAS_FLOAT_FALLBACK)
def input_list_with_float_fallback(subject: CheckInput) -> Iterator[Finding]:
    """The converter is called with both --input_list and --float_fallback.

    ## What it finds
    With `check --encodings`: `--option float_fallback=1` while `input_list` is 1, which is the default.

    ## Why it matters
    The two exclude each other: calibration data would quantize what the fallback is meant to leave in float.

    ## How to fix it
    Call the converter without `--input_list` (`--option input_list=0`).

    ## Seen on
    {facts}
    """
    conversion = conversion_of(subject)
    if conversion is None or not (conversion.call.input_list and conversion.call.float_fallback):
        return
    known = fact(Subject.HAS_FLOAT_FALLBACK, conversion.facts.sdk)
    message = f"--float_fallback is given together with --input_list, which it excludes ({known.known_from})"
    yield Finding("Q719", CONVERTER, message, Severity.ERROR, fix="call the converter without --input_list")


@rule("Q720")
@with_facts(Subject.CUSTOM_IO_1_0_0)
def custom_io_with_encodings_above_0_6_1(subject: CheckInput) -> Iterator[Finding]:
    """The converter is called with --custom_io and encodings of another version than 0.6.1.

    ## What it finds
    With `check --encodings`: `--option custom_io=1` and a file of version 1.0.0, an error; or of 2.0.0 or 2.1.0, a
    warning: the reports are about 1.0.0, and the reason that they give, that `--custom_io` only supports 0.6.1,
    excludes the later versions too.

    ## Why it matters
    The converter rejects the combination.

    ## How to fix it
    Convert the file to 0.6.1 (`dovetail encodings convert FILE --to 0.6.1`), or use `--preserve_io`.

    ## Seen on
    {facts}
    """
    conversion = conversion_of(subject)
    if conversion is None or not conversion.call.custom_io:
        return
    known = fact(Subject.CUSTOM_IO_1_0_0, conversion.facts.sdk)
    if conversion.version == v0_6_1.VERSION or known.answer is Answer.YES:
        return
    is_reported = conversion.version == v1_0_0.VERSION
    how = "is rejected" if is_reported else "is probably rejected: the reports are about 1.0.0"
    message = f"--custom_io with encodings of version {conversion.version} {how}. {known.text} ({known.known_from})"
    fix = "convert the file: dovetail encodings convert FILE --to 0.6.1"
    severity = severity_of(known.answer) if is_reported else Severity.WARNING
    yield Finding("Q720", FILE, message, severity, fix=fix)


@rule("Q723")
@with_facts(Subject.HAS_FLOAT_FALLBACK)
def float_fallback_in_float32(subject: CheckInput) -> Iterator[Finding]:
    """--float_fallback is given without --float_bitwidth 16.

    ## What it finds
    With `check --encodings`: `--option float_fallback=1` while `float_bitwidth` is 32, the default.

    ## Why it matters
    HTP computes in float16. What the converter writes as float32 is rejected, or converted when the graph is prepared.

    ## How to fix it
    Call the converter with `--float_bitwidth 16`.

    ## Seen on
    {facts}
    """
    conversion = conversion_of(subject)
    if conversion is None or not conversion.call.float_fallback or conversion.call.float_bits == 16:
        return
    known = fact(Subject.HAS_FLOAT_FALLBACK, conversion.facts.sdk)
    message = f"--float_fallback without --float_bitwidth 16: its default is 32, HTP has float16 ({known.known_from})"
    yield Finding("Q723", CONVERTER, message, Severity.WARNING, fix="add --float_bitwidth 16")


@rule("Q725")
def converter_without_quantizer(subject: CheckInput) -> Iterator[Finding]:
    """The converter is called in a way in which its quantizer does not run.

    ## What it finds
    With `check --encodings`: neither `--input_list` nor `--float_fallback` (`--option input_list=0`).

    ## Why it matters
    The converter prints "Skipping quantization, no input_list provided" and writes a float model: the encodings have no
    effect.

    ## How to fix it
    Add `--float_fallback --float_bitwidth 16`, or `--input_list` if tensors without an entry may become 8 bit.

    ## Seen on
    - qairt: public reports quote the message. What is recorded of them here does not name their version, so that the
      rule is extrapolated to every version.
    """
    conversion = conversion_of(subject)
    if conversion is None or conversion.call.quantizes:
        return
    message = (
        "neither --input_list nor --float_fallback is given: the quantizer does not run, the encodings have no effect"
    )
    yield Finding("Q725", CONVERTER, message, Severity.ERROR, fix="add --float_fallback --float_bitwidth 16")


@rule("Q731")
@with_facts(Subject.IGNORES_ENCODINGS, Subject.HAS_FLOAT_FALLBACK)
def encodings_ignored_by_converter(subject: CheckInput) -> Iterator[Finding]:
    """The converter is called with --ignore_encodings.

    ## What it finds
    With `check --encodings`: `--option ignore_encodings=1`, also with `--option float_fallback=1`. The precision of all
    tensors is then predicted without the file. That no tensor has an entry is said here and not once more for each
    tensor (Q711 to Q713, Q722, Q730), and entries are not judged (Q714, Q716, Q718, Q727 to Q729).

    ## Why it matters
    The encodings have no effect: with `--input_list` the converter calibrates every tensor, at 8 bit unless
    `--act_bitwidth` and its siblings are set. `--float_fallback` excludes the flag: it runs in float what has no
    encoding, so there must be encodings.

    ## How to fix it
    Call the converter without `--ignore_encodings`.

    ## Seen on
    {facts}
    """
    conversion = conversion_of(subject)
    if conversion is None or not conversion.call.ignore_encodings:
        return
    call, sdk = conversion.call, conversion.facts.sdk
    known = fact(Subject.IGNORES_ENCODINGS, sdk)
    message = "--ignore_encodings is given: the encodings have no effect"
    if call.float_fallback:
        known = fact(Subject.HAS_FLOAT_FALLBACK, sdk)
        message += ", and --float_fallback is given, which excludes it"
    elif call.input_list and conversion.quantizer_v2 is None:
        message += (
            f", the converter calibrates activations to {call.act_bits} bit, weights to {call.weight_bits} and biases "
            f"to {call.bias_bits}"
        )
    message = f"{message} ({known.known_from})"
    yield Finding("Q731", CONVERTER, message, Severity.ERROR, fix="call the converter without --ignore_encodings")


@rule("Q732")
@with_facts(Subject.HAS_QUANTIZE_V2, Subject.SELECTS_QUANTIZE_V2)
def quantizer_v2_on_sdk_without_it(subject: CheckInput) -> Iterator[Finding]:
    """The converter is called with --use_quantize_v2, which this SDK does not have, or is not known to have.

    ## What it finds
    With `check --encodings`: `--option use_quantize_v2=1` and an SDK without the option (an error), or for which no
    report is known (a warning).

    ## Why it matters
    The converter ends with an error about an unknown argument. Without Quantizer V2 files of version 2.0.0 are not read
    (Q715), and no tensor is left in float16 without `--float_fallback` (Q711). Where the SDK has the option, Q730 says
    what is predicted of tensors without an entry.

    ## How to fix it
    Call the converter without it, and convert the file to 0.6.1 (`dovetail encodings convert FILE --to 0.6.1`), or use
    SDK 2.37 or later.

    ## Seen on
    {facts}
    """
    conversion = conversion_of(subject)
    if conversion is None or not conversion.call.use_quantize_v2:
        return
    known = fact(Subject.HAS_QUANTIZE_V2, conversion.facts.sdk)
    if known.answer is Answer.YES:
        return
    message = (
        f"--use_quantize_v2 is given: QAIRT {conversion.facts.sdk_text} has it: {known.answer}. {known.text} "
        f"({known.known_from})"
    )
    fix = "call the converter without --use_quantize_v2, with encodings of version 0.6.1"
    yield Finding("Q732", CONVERTER, message, severity_of(known.answer), fix=fix)
