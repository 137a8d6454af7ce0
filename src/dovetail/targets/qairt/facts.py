"""The table of facts about the QAIRT converter, by SDK version, each with its source and how it is known."""

from __future__ import annotations

from dovetail.targets.qairt.kernel_facts import HTP_CONFIG, ISSUE_4102, KERNEL_FACTS
from dovetail.targets.qairt.sdk import Answer, Confidence, SdkFact, Subject, Version

_4090 = "github.com/qualcomm/aimet issue 4090"
_3902 = "github.com/qualcomm/aimet discussion 3902"
_4069 = "github.com/qualcomm/aimet issues 4046 and 4069, QAIRT 2.37"
_SPECIFICATION = "QAIRT Quantization Specification 0.1 (80-63442-10), QAIRT 2.36"
_GENERATED = "the command line in a public model.cpp of QAIRT 2.31.0"
_MATMUL_RULE = (
    "github.com/quic/aimet, aimet_onnx/quantsim.py: the exception rule for MatMul, which cites HTP's definition of the "
    "operator"
)


def _everywhere(
    subject: Subject, answer: Answer, text: str, source: str, confidence: Confidence, reported: Version | None = None
) -> tuple[SdkFact, ...]:
    """A fact for every version; for the one that it was ``reported`` for, with that confidence."""
    if reported is None:
        return (SdkFact(subject, answer, text, source, confidence),)
    after = (reported[0], reported[1] + 1)
    return (
        SdkFact(subject, answer, text, source, confidence, before=reported),
        SdkFact(subject, answer, text, source, Confidence.REPORTED, reported, after),
        SdkFact(subject, answer, text, source, confidence, after),
    )


FACTS: tuple[SdkFact, ...] = (
    *_everywhere(
        Subject.CALIBRATES_OMITTED,
        Answer.YES,
        "It is calibrated like any other tensor; --act_bitwidth is 8 unless it is set. Nothing is printed.",
        f"{ISSUE_4102}: 34 activations that were meant to be float16 became UFIXED_POINT_8; {_3902}",
        Confidence.STATED,
        (2, 33),
    ),
    SdkFact(
        Subject.HAS_FLOAT_FALLBACK,
        Answer.YES,
        "It must be given without --input_list and without --ignore_encodings. The float type is --float_bitwidth, "
        "which is 32 unless it is set.",
        f"{_3902}; {_GENERATED} has the option",
        Confidence.STATED,
        (2, 31),
    ),
    SdkFact(
        Subject.HAS_FLOAT_FALLBACK,
        Answer.UNKNOWN,
        "The option is in a file that 2.31 wrote; in which version it came is not known.",
        _GENERATED,
        Confidence.NOT_KNOWN,
        before=(2, 31),
    ),
    SdkFact(
        Subject.FILLS_PASS_THROUGH,
        Answer.YES,
        "Its input and output are the same values, so that they have the same scale.",
        f"{_SPECIFICATION}; {_3902}",
        Confidence.DOCUMENTED,
        (2, 36),
    ),
    SdkFact(
        Subject.FILLS_PASS_THROUGH,
        Answer.YES,
        "Files of AIMET below 2.0.0 have no entries for these outputs, and models convert with them.",
        f"{_SPECIFICATION}, which describes a later version; {ISSUE_4102}",
        Confidence.INFERRED,
        before=(2, 36),
    ),
    SdkFact(
        Subject.FLOAT_ENTRIES,
        Answer.NO,
        "Conversion ends in mixed_precision_processing with 'setQInfo: Can't set quantization data with data type: "
        "QNN_DATATYPE_UFIXED_POINT_8 for: onnx::Add_4934 with quantizable flag 0'. The tensor that it names is a "
        "constant without an entry, the addend of a normalization-like Add after a Conv.",
        ISSUE_4102,
        Confidence.REPORTED,
        (2, 33),
        (2, 34),
    ),
    SdkFact(
        Subject.FLOAT_ENTRIES,
        Answer.UNKNOWN,
        "2.33 fails with them; in which version it was fixed, or came, is not known.",
        ISSUE_4102,
        Confidence.NOT_KNOWN,
        before=(2, 33),
    ),
    SdkFact(
        Subject.FLOAT_ENTRIES,
        Answer.UNKNOWN,
        "2.33 fails with them; in which version it was fixed is not known.",
        ISSUE_4102,
        Confidence.NOT_KNOWN,
        (2, 34),
    ),
    *_everywhere(
        Subject.READS_0_6_1,
        Answer.YES,
        "The version that every converter reads.",
        f"{ISSUE_4102}; {_4069}",
        Confidence.EXTRAPOLATED,
        (2, 33),
    ),
    SdkFact(
        Subject.READS_1_0_0,
        Answer.YES,
        "Read by the converters of 2.37; --custom_io is rejected with it.",
        _4069,
        Confidence.REPORTED,
        (2, 37),
        (2, 38),
    ),
    SdkFact(
        Subject.READS_1_0_0,
        Answer.YES,
        "Read by the converters of 2.37 and of later reports.",
        f"{_4069}; {_4090}",
        Confidence.EXTRAPOLATED,
        (2, 38),
    ),
    SdkFact(
        Subject.READS_1_0_0,
        Answer.UNKNOWN,
        "No public report is known that a converter before 2.37 reads it.",
        _4069,
        Confidence.NOT_KNOWN,
        before=(2, 37),
    ),
    SdkFact(
        Subject.READS_2_0_0,
        Answer.NO,
        "The converter ends with KeyError: 'param_encodings'.",
        ISSUE_4102,
        Confidence.REPORTED,
        (2, 33),
        (2, 34),
    ),
    SdkFact(
        Subject.READS_2_0_0,
        Answer.NO,
        "2.33 ends with KeyError: 'param_encodings', and a file that 2.31 wrote lacks --use_quantize_v2.",
        f"{ISSUE_4102}; {_GENERATED}",
        Confidence.EXTRAPOLATED,
        before=(2, 33),
    ),
    SdkFact(
        Subject.READS_2_0_0,
        Answer.UNKNOWN,
        "--use_quantize_v2 was seen in 2.35, and 2.37 is named as the first usable version; this is not settled.",
        f"{ISSUE_4102}; {_4069}",
        Confidence.NOT_KNOWN,
        (2, 34),
        (2, 37),
    ),
    SdkFact(
        Subject.READS_2_0_0,
        Answer.YES,
        "A 2.0.0 file selects Quantizer V2, which runs in float what it cannot keep in integers. It is meant for "
        "qairt-converter.",
        f"{_4090}; {_4069}",
        Confidence.STATED,
        (2, 37),
    ),
    SdkFact(
        Subject.HAS_QUANTIZE_V2,
        Answer.NO,
        "Generated files of 2.25 to 2.31 lack the option.",
        _GENERATED,
        Confidence.EXTRAPOLATED,
        before=(2, 32),
    ),
    SdkFact(
        Subject.HAS_QUANTIZE_V2,
        Answer.UNKNOWN,
        "Generated files of 2.31 lack the option, and it was seen in 2.35.",
        _GENERATED,
        Confidence.NOT_KNOWN,
        (2, 32),
        (2, 33),
    ),
    SdkFact(
        Subject.HAS_QUANTIZE_V2,
        Answer.NO,
        "There is no such option.",
        ISSUE_4102,
        Confidence.REPORTED,
        (2, 33),
        (2, 34),
    ),
    SdkFact(
        Subject.HAS_QUANTIZE_V2,
        Answer.UNKNOWN,
        "It was seen in 2.35, and 2.37 is named as the first usable version; this is not settled.",
        f"{ISSUE_4102}; {_4069}",
        Confidence.NOT_KNOWN,
        (2, 34),
        (2, 37),
    ),
    SdkFact(
        Subject.HAS_QUANTIZE_V2,
        Answer.YES,
        "Files of version 2.0.0 select Quantizer V2 without it.",
        f"{_4090}; {_4069}",
        Confidence.STATED,
        (2, 37),
    ),
    SdkFact(
        Subject.SELECTS_QUANTIZE_V2,
        Answer.YES,
        "Its name says so, and the help of --quantizer_log names it beside files of version 2.0.0. What Quantizer V2 "
        "does is described with such files only.",
        f"{_4090}; the public help text of --quantizer_log",
        Confidence.INFERRED,
        (2, 37),
    ),
    SdkFact(
        Subject.SELECTS_QUANTIZE_V2,
        Answer.UNKNOWN,
        "2.33 does not have the option, and 2.37 is named as the first usable version.",
        f"{ISSUE_4102}; {_4069}",
        Confidence.NOT_KNOWN,
        before=(2, 37),
    ),
    SdkFact(
        Subject.IGNORES_ENCODINGS,
        Answer.YES,
        "Only encodings that the quantizer makes itself are used, none of the user or the model.",
        "the public help text of --ignore_encodings, whose version is not recorded here",
        Confidence.EXTRAPOLATED,
    ),
    SdkFact(
        Subject.READS_BLOCKS,
        Answer.NO,
        "qnn-onnx-converter ends with 'map::at: key not found' on LPBQ; no report about qairt-converter is known.",
        "public report, QAIRT 2.42",
        Confidence.REPORTED,
        (2, 42),
        (2, 43),
    ),
    SdkFact(
        Subject.READS_BLOCKS,
        Answer.UNKNOWN,
        "qnn-onnx-converter of 2.42 fails on LPBQ; for this version no report is known.",
        "public report, QAIRT 2.42",
        Confidence.NOT_KNOWN,
        (2, 43),
    ),
    SdkFact(
        Subject.READS_BLOCKS,
        Answer.NO,
        "0.6.1 cannot carry blocks, and qnn-onnx-converter of the later 2.42 fails on LPBQ with 'map::at: key not "
        "found'.",
        "public report, QAIRT 2.42",
        Confidence.EXTRAPOLATED,
        before=(2, 37),
    ),
    SdkFact(
        Subject.READS_BLOCKS,
        Answer.UNKNOWN,
        "qnn-onnx-converter of the later 2.42 fails on LPBQ; for qairt-converter, which this version has, no report is "
        "known.",
        "public report, QAIRT 2.42",
        Confidence.NOT_KNOWN,
        (2, 37),
        (2, 42),
    ),
    SdkFact(
        Subject.READS_2_1_0,
        Answer.UNKNOWN,
        "No public report is known that a converter reads it.",
        "none",
        Confidence.NOT_KNOWN,
    ),
    *_everywhere(
        Subject.CUSTOM_IO_1_0_0, Answer.NO, "It only supports 0.6.1.", _4069, Confidence.EXTRAPOLATED, (2, 37)
    ),
    SdkFact(
        Subject.FLOAT_BY_UINT8,
        Answer.NO,
        "There is no such kernel: the context binary generator rejects the MatMul.",
        f"{_4090}, whose version is not recorded here",
        Confidence.EXTRAPOLATED,
    ),
    SdkFact(
        Subject.FLOAT_BY_INT8,
        Answer.YES,
        "FLOAT_16 by signed 8 bit is supported.",
        _4090,
        Confidence.STATED,
        (2, 44),
    ),
    SdkFact(
        Subject.FLOAT_BY_INT8,
        Answer.NO,
        "FLOAT_16 by signed 8 bit came with 2.44.",
        _4090,
        Confidence.STATED,
        before=(2, 44),
    ),
    SdkFact(
        Subject.BIAS_OMITTED,
        Answer.YES,
        "An 8-bit bias loses what the int32 accumulator has: set --bias_bitwidth 32 nearly always.",
        _3902,
        Confidence.STATED,
    ),
    SdkFact(
        Subject.FUSED_OMITTED,
        Answer.YES,
        "AIMET has no quantizer between Conv, Gemm or Add and the activation after it, and between MatMul and the Add "
        "of its bias, and the converter tags the same groups.",
        f"{_SPECIFICATION}; {HTP_CONFIG}",
        Confidence.DOCUMENTED,
        (2, 36),
    ),
    SdkFact(
        Subject.FUSED_OMITTED,
        Answer.YES,
        "AIMET has no quantizer between Conv, Gemm or Add and the activation after it, and between MatMul and the Add "
        "of its bias.",
        HTP_CONFIG,
        Confidence.INFERRED,
        before=(2, 36),
    ),
    SdkFact(
        Subject.SYMMETRIC_OPERAND,
        Answer.YES,
        "AIMET writes its files this way from HTP v73 on: the entry of a tensor that a MatMul reads as its second "
        "operand is symmetric, if it has 16 bits.",
        _MATMUL_RULE,
        Confidence.INFERRED,
    ),
    SdkFact(
        Subject.FLOAT_RESULT,
        Answer.YES,
        "Every tensor has the precision of its entry, an operator of which a tensor has none computes in float, and "
        "conversions are inserted where the two differ.",
        f"{_SPECIFICATION} (its steps 'select op precision' and 'insert converts'); {_3902}",
        Confidence.INFERRED,
        (2, 36),
    ),
    SdkFact(
        Subject.FLOAT_RESULT,
        Answer.YES,
        "Every tensor has the precision of its entry, and an operator of which a tensor has none computes in float; "
        "how the two are connected is only described for a later version.",
        f"{_SPECIFICATION}, which describes a later version; {_3902}",
        Confidence.INFERRED,
        before=(2, 36),
    ),
    *KERNEL_FACTS,
)


def fact(subject: Subject, sdk: Version) -> SdkFact:
    """The answer to a question for one SDK version."""
    return next(row for row in FACTS if row.subject is subject and row.holds_for(sdk))


def facts_about(*subjects: Subject) -> tuple[SdkFact, ...]:
    """All rows of some questions, in the order of the versions."""
    rows = (row for subject in subjects for row in FACTS if row.subject is subject)
    return tuple(sorted(rows, key=lambda row: (subjects.index(row.subject), row.since or (0, 0))))
