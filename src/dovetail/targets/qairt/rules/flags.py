"""Q7 on flags of the converter that exclude each other, or have a default that is rarely meant."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.encodings import v1_0_0
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
def custom_io_with_encodings_1_0_0(subject: CheckInput) -> Iterator[Finding]:
    """The converter is called with --custom_io and encodings of version 1.0.0.

    ## What it finds
    With `check --encodings`: `--option custom_io=1` and a file of version 1.0.0.

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
    if conversion.version != v1_0_0.VERSION or known.answer is Answer.YES:
        return
    message = f"--custom_io with encodings of version 1.0.0 is rejected. {known.text} ({known.known_from})"
    fix = "convert the file: dovetail encodings convert FILE --to 0.6.1"
    yield Finding("Q720", FILE, message, severity_of(known.answer), fix=fix)


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
    - qairt: public report, QAIRT 2.33; the message is the converter's own.
    """
    conversion = conversion_of(subject)
    if conversion is None or conversion.call.quantizes:
        return
    message = (
        "neither --input_list nor --float_fallback is given: the quantizer does not run, the encodings have no effect"
    )
    yield Finding("Q725", CONVERTER, message, Severity.ERROR, fix="add --float_fallback --float_bitwidth 16")
