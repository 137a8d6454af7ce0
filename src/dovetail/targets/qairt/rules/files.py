"""Q7 on encodings files that an SDK does not read, or reads in part."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.encoding import Granularity
from dovetail.finding import Finding, Place, PlaceKind, Severity
from dovetail.model.origin import each_value
from dovetail.model.place import at_tensor
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule
from dovetail.targets.qairt.export import READS
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.roles import conv_addends
from dovetail.targets.qairt.rules.subject import (
    FILE,
    WAYS_OUT,
    conversion_of,
    given_or_planned,
    listed,
    severity_of,
    with_facts,
)
from dovetail.targets.qairt.sdk import Answer, Confidence, Subject

# What is said about blocks with float scales where the report is about LPBQ.
_OTHER_BLOCKS = " This weight has blocks with float scales, about which no report is known."


@rule("Q714")
@with_facts(Subject.FLOAT_ENTRIES)
def float_entry_on_sdk_that_rejects_it(subject: CheckInput) -> Iterator[Finding]:
    """An entry says float, which this SDK is not known to accept.

    ## What it finds
    Entries with `dtype: float`: with `check --encodings` those of the file, with `fit` those of the way `explicit`, if
    it is taken. A finding names every constant that an Add or Mul after a Conv reads and that has no entry: the one
    constant that the report names is such an addend. Whether constants elsewhere, as after a Gemm, have the same
    effect is not known: without one after a Conv, the finding is a warning about the file.

    ## Why it matters
    The converter ends with an error that names a constant which is in neither file (`setQInfo: Can't set quantization
    data ... with quantizable flag 0`), so that the cause is not visible.

    ## How to fix it
    Fold the constants into the Conv before them, as `dovetail fit` with this target does, or do not write float
    entries: leave the tensors out and use `--float_fallback`, or split the model.

    ## Seen on
    {facts}
    """
    conversion = given_or_planned(subject)
    if conversion is None:
        return
    entries = conversion.entries
    floats = [name for name, entry in entries.items() if entry.is_float]
    known = fact(Subject.FLOAT_ENTRIES, conversion.facts.sdk)
    if not floats or known.answer is Answer.YES:
        return
    about = f"{len(floats)} entries are float ({listed(floats)})"
    sdk = f"QAIRT {conversion.facts.sdk_text}"
    constants = {str(v.name): v for _, v in conv_addends(conversion.model) if str(v.name) not in entries}
    for name, value in constants.items():
        message = (
            f"{about}, and constant {name!r} after a Conv has none: {sdk}: {known.answer}, {known.text} "
            f"({known.known_from})"
        )
        yield Finding("Q714", at_tensor(value), message, severity_of(known.answer), fix=WAYS_OUT)
    if not constants:
        message = (
            f"{about}: {sdk}: {known.answer}. {known.text} This model has no such constant, so that it may be accepted "
            f"({known.known_from})"
        )
        yield Finding("Q714", FILE, message, Severity.WARNING, fix=WAYS_OUT)


@rule("Q715")
@with_facts(Subject.READS_0_6_1, Subject.READS_1_0_0, Subject.READS_2_0_0, Subject.READS_2_1_0)
def encodings_version_not_read_by_sdk(subject: CheckInput) -> Iterator[Finding]:
    """This SDK does not read, or is not known to read, encodings of this version.

    ## What it finds
    A file whose version the SDK of the target does not read (an error), or for which no report is known (a warning):
    with `check --encodings` the caller's, with `fit` the one that is written.

    ## Why it matters
    The converter ends with an error such as `KeyError: 'param_encodings'`, which does not name the version.

    ## How to fix it
    Convert the file: `dovetail encodings convert FILE --to 0.6.1 --model MODEL`. float16 entries and blocks cannot be
    in every version; the command lists them.

    ## Seen on
    {facts}
    """
    conversion = given_or_planned(subject)
    if conversion is None:
        return
    version = conversion.version
    known = fact(READS[version], conversion.facts.sdk)
    if known.answer is Answer.YES:
        return
    message = (
        f"encodings of version {version}: QAIRT {conversion.facts.sdk_text} reads them: {known.answer}. {known.text} "
        f"({known.known_from})"
    )
    fix = "convert the file: dovetail encodings convert FILE --to 0.6.1 --model MODEL"
    yield Finding("Q715", FILE, message, severity_of(known.answer), fix=fix)


@rule("Q716")
@with_facts(Subject.READS_BLOCKS)
def block_encoding_not_read_by_sdk(subject: CheckInput) -> Iterator[Finding]:
    """A weight is quantized in blocks or LPBQ, which this SDK is not known to read.

    ## What it finds
    Entries with blocks, with float or with integer scales (LPBQ): of the file that is checked (`check --encodings`), or
    that `fit` writes. It is an error where the report applies: LPBQ with 2.42, and any blocks before 2.37. For blocks
    with float scales, and for qairt-converter, no report is known, so that with 2.42 they are a warning.

    ## Why it matters
    qnn-onnx-converter ends with an error that names neither the weight nor the cause (`map::at: key not found`).

    ## How to fix it
    Quantize the weights per channel (`--precision w4a16` or `w8a16`), or compile the QDQ model through ONNX Runtime's
    QNN provider, which supports LPBQ (`--target qnn-htp`).

    ## Seen on
    {facts}
    """
    conversion = given_or_planned(subject)
    if conversion is None:
        return
    known = fact(Subject.READS_BLOCKS, conversion.facts.sdk)
    values = {str(value.name): value for value in each_value(conversion.model.graph)}
    for name, entry in conversion.entries.items():
        if not entry.is_blocked or known.answer is Answer.YES:
            continue
        is_lpbq = entry.granularity is Granularity.EXPANDED_BLOCK
        is_reported = is_lpbq or known.confidence is not Confidence.REPORTED
        answer = known.answer if is_reported else Answer.UNKNOWN
        message = (
            f"{name!r} is quantized in blocks of {entry.block_size}: QAIRT {conversion.facts.sdk_text} reads them: "
            f"{answer}. {known.text}{'' if is_reported else _OTHER_BLOCKS} ({known.known_from})"
        )
        fix = "quantize the weights per channel, or compile with --target qnn-htp"
        place = at_tensor(values[name]) if name in values else Place(PlaceKind.TENSOR, tensor=name)
        yield Finding("Q716", place, message, severity_of(answer), fix=fix)


@rule("Q718")
def encoding_of_tensor_not_in_model(subject: CheckInput) -> Iterator[Finding]:
    """An entry is of a tensor that the model does not have.

    ## What it finds
    With `check --encodings`: entries whose name is no tensor of the model.

    ## Why it matters
    The tensor that the entry was meant for, often renamed when the model was exported or simplified again, has none
    and becomes 8 bit (Q711). What the converter does with the entry itself is not known: the name may also be that of
    a tensor that the converter creates or renames, so check whether the message of a failed conversion has it.

    ## How to fix it
    Export the encodings from the same ONNX file that is converted, or rename the entries.

    ## Seen on
    - qairt: not known from a converter. Inferred from the names: `onnx::Add_4934` in the public report of Q714 is one
      that torch's exporter numbers, so that a second export of the same model has others.
    """
    conversion = conversion_of(subject)
    if conversion is None:
        return
    names = {value.name for value in each_value(conversion.model.graph)}
    for name in conversion.entries:
        if name not in names:
            place = Place(PlaceKind.TENSOR, tensor=name)
            message = f"the encodings have an entry for {name!r}, but the model has no such tensor"
            fix = "export the encodings from the ONNX file that is converted, or rename the entry"
            yield Finding("Q718", place, message, Severity.WARNING, fix=fix)
