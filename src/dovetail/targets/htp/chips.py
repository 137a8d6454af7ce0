"""The chips: names, SoC numbers, HTP architectures, and what each supports."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dovetail.errors import InputError

if TYPE_CHECKING:
    from dovetail.rules.check_input import CheckInput

ARCHITECTURES = (68, 69, 73, 75, 79, 81)
# First architectures with float16 and with int16 second MatMul operands (onnxruntime-qnn 2.7.0, measured).
_FLOAT16_FROM, _INT16_OPERAND_FROM = 69, 73
# SoCs for which the compiler estimates latency (onnxruntime-qnn 2.7.0: others log "Performance Estimates unsupported").
ESTIMATED = (52, 62, 63, 72, 77, 95)


@dataclass(frozen=True, slots=True)
class Chip:
    """One compilation target: an HTP architecture and, for a specific chip, its SoC number and VTCM size.

    ``lacks_float16``: smaller chips compute in integers only, whatever their architecture. ``float16_needs_soc``:
    ONNX Runtime's provider enables float16 only with an SoC number; Qualcomm's own converters do not ask for one.
    """

    name: str
    architecture: int
    soc: int | None = None
    vtcm_mb: int | None = None
    lacks_float16: bool = False
    float16_needs_soc: bool = True

    @property
    def has_float16(self) -> bool:
        return not self.no_float16

    @property
    def computes_in_float(self) -> bool:
        """Whether it has float kernels, whether or not the provider enables float16 without an SoC number."""
        return not self.lacks_float16 and self.architecture >= _FLOAT16_FROM

    @property
    def no_float16(self) -> str:
        """Why float16 is not available; empty if it is."""
        if self.lacks_float16:
            return f"{self.name} computes in integers only: choose w8a16 or w8a8, or a different chip"
        if self.architecture < _FLOAT16_FROM:
            return f"HTP v{self.architecture} does not compute in float16: choose w8a16 or w8a8, or a newer chip"
        if self.soc is None and self.float16_needs_soc:
            example = next(chip.name for chip in CHIPS.values() if chip.architecture == self.architecture)
            return (
                f"float16 requires an SoC number, and v{self.architecture} is only an architecture: name the chip, as "
                f"in qnn-htp:{example}, or its SoC number, as in qnn-htp:socNN/v{self.architecture}"
            )
        return ""

    @property
    def has_int16_operands(self) -> bool:
        return self.architecture >= _INT16_OPERAND_FROM

    @property
    def no_int16_weights(self) -> str:
        """Why 16-bit weights are not available; empty if they are. In the words of the compiler, for every operator."""
        if self.has_int16_operands:
            return ""
        return (
            f'HTP v{self.architecture} does not support 16-bit weights (the compiler: "has incorrect Value '
            f'{self.architecture}, expected >= {_INT16_OPERAND_FROM}"): choose w8a16, or a chip from '
            f"v{_INT16_OPERAND_FROM} on"
        )

    @property
    def has_estimate(self) -> bool:
        return self.soc in ESTIMATED


# SoC number, architecture and VTCM size as the compiler logs them for the chip (onnxruntime-qnn 2.7.0).
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("sm8450", 69, 36, 8),
        Chip("sm8550", 73, 43, 8),
        Chip("sm8650", 75, 57, 8),
        Chip("sm8750", 79, 69, 8),
        Chip("sm8850", 81, 87, 8),
        Chip("sm8635", 73, 68, 4, lacks_float16=True),
        Chip("sm7675", 73, 70, 4, lacks_float16=True),
        Chip("sm7550", 73, 64, 2, lacks_float16=True),
        Chip("sm7325", 68, 35, 2),
        Chip("sc8380xp", 73, 60, 8),
        Chip("sc8480xp", 81, 88, 8),
        Chip("qcs6490", 68, 93, 2),
        Chip("qcs8300", 75, 82, 8),
        Chip("qcs8550", 73, 66, 8),
        Chip("qcs9100", 73, 77, 8),
        Chip("sa8797", 81, 72, 16),
        Chip("soc52", 73, 52, 8),
    )
}
DEFAULT = "sm8550"


def chip_named(text: str, before: str = "qnn-htp:") -> Chip:
    """Return the chip for ``sm8550``, ``v75``, ``soc52``, or ``soc90/v75`` (unlisted SoC number, architecture).

    ``before``: what comes before it in the name of the target, for messages.
    """
    name = text.lower() or DEFAULT
    if name in CHIPS:
        return CHIPS[name]
    if match := re.fullmatch(r"v(\d+)", name):
        return Chip(name, _architecture(int(match[1]), before + text))
    if match := re.fullmatch(r"soc(\d+)(?:/v(\d+))?", name):
        number = int(match[1])
        listed = next((chip for chip in CHIPS.values() if chip.soc == number), None)
        if match[2] is None:
            if listed is None:
                raise InputError(
                    f"{before}{text}: this SoC number is not listed; add its architecture, as in soc{number}/v75"
                )
            return listed
        architecture = _architecture(int(match[2]), before + text)
        if listed is not None and listed.architecture != architecture:
            raise InputError(f"{before}{text}: soc{number} has the architecture v{listed.architecture}")
        return Chip(name, architecture, number) if listed is None else replace(listed, name=name)
    raise InputError(f"{before}{text}: unknown chip; expected one of {', '.join(CHIPS)}, v68 to v81, or socNN/vNN")


def _architecture(number: int, text: str) -> int:
    if number not in ARCHITECTURES:
        listed = ", ".join(f"v{architecture}" for architecture in ARCHITECTURES)
        raise InputError(f"{text}: unknown HTP architecture v{number}; expected one of {listed}")
    return number


def chip_of(subject: CheckInput) -> Chip:
    """Return the chip of the target that is checked."""
    chip = getattr(subject.facts, "chip", None)
    if not isinstance(chip, Chip):
        raise TypeError("a target with the HTP rules must have a chip in its facts")
    return chip
