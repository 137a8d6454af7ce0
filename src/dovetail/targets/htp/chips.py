"""The chips: names, SoC numbers and HTP architectures, all from one table; what differs is derived, not copied."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dovetail.errors import InputError

ARCHITECTURES = (68, 69, 73, 75, 79, 81)
# Which architectures compute in float16 and take int16 second operands (onnxruntime-qnn 2.7.0, measured).
_FLOAT16_FROM, _INT16_OPERAND_FROM = 69, 73
# SoCs for which the compiler estimates latency (onnxruntime-qnn 2.7.0: others log "Performance Estimates unsupported").
_ESTIMATED = frozenset((52, 62, 63, 72, 77, 95))


@dataclass(frozen=True, slots=True)
class Chip:
    """One thing to compile for: an HTP architecture, and where a part is meant its SoC number and its VTCM.

    ``lacks_float16``: smaller parts compute in integers only, whatever their architecture.
    """

    name: str
    architecture: int
    soc: int | None = None
    vtcm_mb: int | None = None
    lacks_float16: bool = False

    @property
    def has_float16(self) -> bool:
        return not self.no_float16

    @property
    def no_float16(self) -> str:
        """Why there is no float16 here; empty where there is. Without an SoC number the provider does not start it."""
        if self.lacks_float16:
            return f"{self.name} computes in integers only: choose w8a16 or w8a8, or another chip"
        if self.architecture < _FLOAT16_FROM:
            return f"HTP v{self.architecture} does not compute in float16: choose w8a16 or w8a8, or a newer chip"
        if self.soc is None:
            part = next(chip.name for chip in CHIPS.values() if chip.architecture == self.architecture)
            return (
                f"float16 needs an SoC number, and v{self.architecture} is an architecture: name the chip, as in "
                f"qnn-htp:{part}, or its number, as in qnn-htp:socNN/v{self.architecture}"
            )
        return ""

    @property
    def has_int16_operands(self) -> bool:
        return self.architecture >= _INT16_OPERAND_FROM

    @property
    def has_estimate(self) -> bool:
        return self.soc in _ESTIMATED


# Number, architecture and memory are those that the compiler itself logs for the part (onnxruntime-qnn 2.7.0).
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


def chip_named(text: str) -> Chip:
    """``sm8550``, ``v75``, ``soc52``, or an unlisted number with its architecture, ``soc90/v75``."""
    name = text.lower() or DEFAULT
    if name in CHIPS:
        return CHIPS[name]
    if match := re.fullmatch(r"v(\d+)", name):
        return Chip(name, _architecture(int(match[1]), text))
    if match := re.fullmatch(r"soc(\d+)(?:/v(\d+))?", name):
        number = int(match[1])
        known = next((chip for chip in CHIPS.values() if chip.soc == number), None)
        if match[2] is None:
            if known is None:
                raise InputError(
                    f"qnn-htp:{text}: this SoC is not listed, say its architecture too, as in soc{number}/v75"
                )
            return known
        architecture = _architecture(int(match[2]), text)
        if known is not None and known.architecture != architecture:
            raise InputError(f"qnn-htp:{text}: soc{number} is a v{known.architecture} part")
        return Chip(name, architecture, number) if known is None else replace(known, name=name)
    raise InputError(f"qnn-htp:{text}: no such chip; there is {', '.join(CHIPS)}, v68 to v81, or socNN/vNN")


def _architecture(number: int, text: str) -> int:
    if number not in ARCHITECTURES:
        raise InputError(f"qnn-htp:{text}: no HTP v{number}; there is {', '.join(f'v{a}' for a in ARCHITECTURES)}")
    return number
