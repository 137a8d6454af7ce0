"""Whole numbers as a person writes them, on the command line or in a file."""

from __future__ import annotations

import re

# A larger size, index or count is a typing error; vendors' compilers use 32-bit integers.
LARGEST = 2**31 - 1


def whole_number(text: str, least: int = 1) -> int | None:
    """Parse plain digits as a number from ``least`` to ``LARGEST``; None for anything else.

    ``str.isdigit`` would accept "²", which ``int`` does not.
    """
    if re.fullmatch("[0-9]{1,10}", text) is None:
        return None
    number = int(text)
    return number if least <= number <= LARGEST else None
