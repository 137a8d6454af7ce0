"""The chips: names, SoC numbers and HTP architectures, all from one table; what differs is derived, not copied."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dovetail.errors import InputError

ARCHITECTURES = (68, 69, 73, 75, 79, 81)
# Which architectures compute in float16 and take int16 second operands (onnxruntime-qnn 2.7.0, measured).
_FLOAT16_FROM, _INT16_OPERAND_FROM = 69, 73
# SoCs for which the compiler estimates latency (onnxruntime-qnn 2.7.0: others log "Performance Estimates unsupported").
_ESTIMATED = frozenset((52, 62, 63, 72, 77, 95))


@dataclass(frozen=True, slots=True)
class Chip:
    """One thing to compile for: an HTP architecture, and the SoC number where a part is meant."""

    name: str
    architecture: int
    soc: int | None = None

    @property
    def has_float16(self) -> bool:
        """Float16 needs an SoC number: the provider does not start without one."""
        return self.soc is not None and self.architecture >= _FLOAT16_FROM

    @property
    def has_int16_operands(self) -> bool:
        return self.architecture >= _INT16_OPERAND_FROM

    @property
    def has_estimate(self) -> bool:
        return self.soc in _ESTIMATED


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("sm8450", 69, 36),
        Chip("sm8550", 73, 43),
        Chip("sm8650", 75, 57),
        Chip("sm8750", 79, 69),
        Chip("sm8850", 81, 87),
        Chip("sc8380xp", 73, 60),
        Chip("qcs8550", 73, 66),
        Chip("qcs6490", 68, 93),
        Chip("sm7325", 68, 35),
        Chip("soc52", 73, 52),
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
        return Chip(name, architecture, number)
    raise InputError(f"qnn-htp:{text}: no such chip; there is {', '.join(CHIPS)}, v68 to v81, or socNN/vNN")


def _architecture(number: int, text: str) -> int:
    if number not in ARCHITECTURES:
        raise InputError(f"qnn-htp:{text}: no HTP v{number}; there is {', '.join(f'v{a}' for a in ARCHITECTURES)}")
    return number
