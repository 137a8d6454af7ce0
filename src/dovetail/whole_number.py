"""Whole numbers as a person writes them, on the command line or in a file."""

from __future__ import annotations

import re

# Sizes, indices and counts beyond this are typing errors; vendors' compilers count in 32 bit.
LARGEST = 2**31 - 1


def whole_number(text: str, least: int = 1) -> int | None:
    """The number that plain digits write, from ``least`` to ``LARGEST``; None for anything else.

    ``str.isdigit`` would let "²" through, which ``int`` does not take.
    """
    if re.fullmatch("[0-9]{1,10}", text) is None:
        return None
    number = int(text)
    return number if least <= number <= LARGEST else None
