"""How the converter is called: the flags that decide what becomes of a tensor without an encoding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConverterCall:
    """The flags of a call; the defaults are those of the converter, with calibration data.

    ``input_list``: calibration data is given. ``float_fallback``: what has no encoding runs in float of ``float_bits``.
    """

    input_list: bool = True
    float_fallback: bool = False
    float_bits: int = 32
    act_bits: int = 8
    weight_bits: int = 8
    bias_bits: int = 8
    custom_io: bool = False
    ignore_encodings: bool = False
    use_quantize_v2: bool = False

    @property
    def quantizes(self) -> bool:
        """Whether the quantizer runs at all."""
        return self.input_list or self.float_fallback
