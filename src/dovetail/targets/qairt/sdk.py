"""What the QAIRT converter does, by SDK version: a table of facts, each with its source and how sure it is.

The SDK is on no package registry, so this is a model of its behaviour from public reports and documentation. What
follows from it is a prediction, never a check.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from dovetail.errors import InputError

Version = tuple[int, int]


class Answer(StrEnum):
    """Whether an SDK does something."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Confidence(StrEnum):
    """How a fact is known, the most certain first."""

    REPORTED = "reported for this version"
    DOCUMENTED = "documented"
    STATED = "stated by a maintainer"
    EXTRAPOLATED = "extrapolated from another version"
    INFERRED = "inferred from other facts"
    NOT_KNOWN = "not known"


class Subject(StrEnum):
    """A question about the converter that has a yes, a no or an unknown for every SDK version."""

    CALIBRATES_OMITTED = "with --input_list, a tensor without an encoding is quantized to --act_bitwidth"
    HAS_FLOAT_FALLBACK = "--float_fallback runs what has no encoding in float"
    FILLS_PASS_THROUGH = "the output of an operator that only moves data gets the encoding of its input"
    FLOAT_ENTRIES = "entries with dtype float are accepted"
    READS_0_6_1 = "reads encodings 0.6.1"
    READS_1_0_0 = "reads encodings 1.0.0"
    READS_2_0_0 = "reads encodings 2.0.0"
    READS_2_1_0 = "reads encodings 2.1.0"
    READS_BLOCKS = "reads weights in blocks and LPBQ"
    HAS_QUANTIZE_V2 = "has --use_quantize_v2"
    SELECTS_QUANTIZE_V2 = "--use_quantize_v2 selects Quantizer V2 for a file of any version"
    IGNORES_ENCODINGS = "with --ignore_encodings, the file of encodings has no effect"
    CUSTOM_IO_1_0_0 = "accepts --custom_io with encodings 1.0.0"
    FLOAT_BY_UINT8 = "multiplies a float16 activation by a uint8 one"
    FLOAT_BY_INT8 = "multiplies a float16 activation by an int8 one"
    BIAS_OMITTED = "a bias without an encoding gets --bias_bitwidth, which is 8 unless it is set"
    FUSED_OMITTED = "a tensor between fused operators needs no encoding"
    SYMMETRIC_OPERAND = "a MatMul reads its second operand in the symmetric 16-bit entry of the tensor"
    FLOAT_RESULT = "an operator in float writes a tensor that has an entry in that encoding"
    RANK_3_ADD = "compiles MatMul of rank 3 followed by a separate Add in integers"
    ONE_PRECISION = "converts a graph that is wholly integer or wholly float"
    SMALL_RATIO = "computes 16-bit channels whose input scale x weight scale / output scale is 2^-24 or less"
    LARGE_BIAS = "adds a bias of more than 2^31 steps of input scale x weight scale"
    OWN_OUTPUT_SCALE = "keeps the entry of a 16-bit Sigmoid, HardSigmoid or Tanh output"
    ISLANDS_COMPILE = "compiles every mixture of float16 and integer operators"


@dataclass(frozen=True, slots=True)
class SdkFact:
    """The answer to a question for the SDK versions from ``since`` up to, but without, ``before``."""

    subject: Subject
    answer: Answer
    text: str
    source: str
    confidence: Confidence
    since: Version | None = None
    before: Version | None = None

    def holds_for(self, sdk: Version) -> bool:
        return (self.since is None or self.since <= sdk) and (self.before is None or sdk < self.before)

    @property
    def versions(self) -> str:
        """The versions in words."""
        if self.since is None and self.before is None:
            return "every version"
        if self.since is None or self.before is None:
            return f"before {_text(self.before)}" if self.before else f"from {_text(self.since)} on"
        last = (self.before[0], self.before[1] - 1)
        return _text(self.since) if last == self.since else f"{_text(self.since)} to {_text(last)}"

    @property
    def known_from(self) -> str:
        """How it is known, for the end of a message."""
        return f"{self.source}; {self.confidence}"

    def __str__(self) -> str:
        return f"QAIRT {self.versions}: {self.subject}: {self.answer}. {self.text} ({self.known_from})"


def _text(version: Version | None) -> str:
    return "" if version is None else ".".join(map(str, version))


def parse_sdk(text: str) -> Version:
    """Return the major and minor version of ``2.33``, ``2.33.0`` or ``2.33.0.250327``."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.\d+)*", text.strip())
    if match is None:
        raise InputError(f"qairt:{text}: expected an SDK version and a chip, as in qairt:2.33/v75")
    return int(match[1]), int(match[2])
